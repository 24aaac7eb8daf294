"""Group the files of a folder into checkpoints, where no index of a format names the files.

The module knows names, sizes and times.  Groupings from
strong to weak: a rule of the user; shards numbered `-00001-of-00004`; files with equal step and
different content (`model-300.pt`, `optim-300.pt`); files without a step whose names are parts of a
training's state (`model.pt`, `optimizer.pt`).  The files of a group are copied, kept, judged and
removed together, so that a wrong guess costs room and no data: likely groups are made, and a part
counts as missing only where older checkpoints of the same training have the part.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from penstock.save.companions import add_companions, is_marker
from penstock.save.rules import NameRule

__all__ = [
    "BY_RULE",
    "BY_STEP",
    "PACKED",
    "Parts",
    "Unit",
    "are_parts",
    "grouped",
    "has_data",
    "is_called_checkpoint",
    "is_part",
    "is_part_of_a_training",
    "is_run",
    "is_state",
    "lost_shards",
    "may_be_state",
    "parts_of",
    "step_of_folder",
]

BY_RULE = "the rule --unit"
BY_STEP = "the step by the rule --unit"
BY_SAVE = "files that one save of the recorded run wrote"


# Endings that always mark a training's state ...
_ALWAYS = (
    *(".pt", ".pth", ".ckpt", ".pt2", ".safetensors", ".keras", ".weights.h5", ".pth.tar"),
    *(".pt.tar", ".gguf", ".msgpack", ".pdparams", ".pdopt", ".nemo", ".eqx", ".distcp"),
    *(".pdstates", ".states"),
)


# ... and endings that need a matching name: data sets and results use these endings too.
_PERHAPS = (
    ".zip", ".npz", ".npy", ".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".bin", ".params",
    ".th", ".tar",
)  # fmt: skip


# ... and endings that need a number in the name too.
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")


# ... and endings of files that belong to a checkpoint of equal step, if the words match.
_WITH_STATE = {
    "dat", "raw", "state", "weights", "optim", "opt", "model", "blob", "sd", "mdl", "onnx", "gz",
    "zst", "lz4",
}  # fmt: skip


_NO_STATE = {  # endings of files that make no checkpoint by themselves
    "txt", "log", "csv", "tsv", "json", "jsonl", "yaml", "yml", "md", "html", "png", "jpg", "jpeg",
    "gif", "svg", "pdf", "mp4", "wav", "toml", "py", "sh", "part", "lock", "bak", "old", "swp",
}  # fmt: skip


_BESIDE = (".json", ".yaml", ".yml", ".toml")  # may belong to a checkpoint, but holds no state
_SELECTORS = {"best", "last", "latest", "final", "top", "worst", "init", "initial", "backup"}


_STEP_WORDS = {
    "step", "steps", "globalstep", "global", "iter", "iters", "iteration", "it", "epoch", "epochs",
    "ep", "ckpt", "checkpoint", "update", "updates", "round", "ba",
}  # fmt: skip


# ... of which these may follow their number: `12epoch.pth`, `3000_steps`.
_AFTER = {"step", "steps", "iter", "iters", "iteration", "iterations", "epoch", "epochs", "updates"}
_CHECKPOINTS = ("ckpt", "checkpoint")


# A number after one of these words is a size, a version or the number of a run, and no step, also
# where the number differs between files.
_NO_STEP = {
    *("v", "ver", "version", "rev", "run", "exp", "experiment", "trial", "seed", "job", "try"),
    *("bs", "batch", "size", "dim", "hidden", "layers", "heads", "len", "length", "seq", "res"),
    *("patch", "window", "width", "depth", "classes", "tokens", "samples", "bit", "bits", "px"),
    *("fp", "bf", "int", "cuda", "vit", "resnet", "resnext", "vgg", "densenet", "efficientnet"),
    *("convnext", "mobilenet", "swin", "deit", "yolo", "llama", "gpt", "phi", "qwen", "gemma"),
    *("mistral", "mixtral", "bert", "bloom", "falcon", "whisper", "dino", "sd", "sdxl", "flux"),
    *("rcnn", "cifar", "imagenet"),
}


_BY_THEMSELVES = {".pt", ".pth", ".ckpt", ".safetensors", ".keras"}


# Rewritten at each save; `best` and `top` of two files may be of different steps.
_EACH_TIME = {"last", "latest", "final"}
_STEP_ORDER = (  # by how the words begin; the finest first
    "step",
    "globalstep",
    "global",
    "it",
    "update",
    "ba",
    "ckpt",
    "checkpoint",
    "round",
    "ep",
)


# The two averages of Adam: a `v` after the word of an optimizer is no version.
_OPTIMIZERS = {"adam", "adamw", "optim", "optimizer", "opt", "sgd", "momentum"}
_MOMENTS = {"m", "v", "mu", "nu", "exp", "avg", "sq", "moment", "moments"}


# Words of a description that each save writes; a configuration may be written once.
_STATE_TEXT, _FIXED_TEXT = {"state", "states", "rng", "sampler"}, {"config", "args", "meta"}


_RANK_WORDS = {
    "rank", "mp", "tp", "pp", "dp", "shard", "part", "worker", "node", "proc", "process",
    "gpu", "device", "host", "replica", "states", "partition", "member", "fold", "layer",
    "expert", "client", "chunk", "slice", "stage", "agent", "env", "consolidated", "ensemble",
    "block",
}  # fmt: skip


_STATE_WORDS = {
    "model", "models", "weights", "weight", "net", "network", "params", "param", "state", "states",
    "optim", "optimizer", "optimizers", "opt", "adam", "sgd", "scheduler", "sched", "lr", "ema",
    "scaler", "rng", "random", "trainer", "training", "train", "sampler", "dataloader", "loader",
    "generator", "discriminator", "netg", "netd", "encoder", "decoder", "actor", "critic",
    "policy", "value", "target", "lora", "adapter", "head", "backbone", "teacher", "student",
    "momentum", "unet", "vae", "transformer", "pytorch", "ckpt", "checkpoint", "snapshot", "dict",
    "server", "online", "replay", "buffer", "memory", "mapper", "projector", "classifier", "prior",
    "dynamics", "reward", "normalizer", "vecnormalize", "embedding", "embeddings", "qf",
    "g", "d", "do", "a", "b", "averaged", "swa", "master", "meta", "metadata", "args", "config",
}  # fmt: skip


_METRICS = {"loss", "acc", "accuracy", "val", "valid", "score", "metric", "error", "auc", "map"}
_RANDOM = {"rng", "random"}  # each rank has a state of its own
_NO_COUNT, _KNOWN = _NO_STEP | _METRICS, _STATE_WORDS | _METRICS
_SPLIT = _STEP_WORDS | _RANK_WORDS | _STATE_WORDS
_LEADS = ("model", "weights", "net", "params", "state", "checkpoint", "ckpt", "netg", "generator")
_SHARD = re.compile(r"(.*?)[-_.](\d+)[-_]of[-_](\d+)(.*)")
_PIECES = re.compile(r"[-_=+ ~@,]+")
_GLUED = re.compile(r"([A-Za-z]+)(\d+)")
_BEFORE = re.compile(r"(\d+)([A-Za-z]+)")  # 12epoch
_CAMEL = re.compile(r"(.*[a-z])(Epoch|Step|Iter|Iteration|Checkpoint|Ckpt|Update)(\d+)")
_FRACTION = re.compile(r"([A-Za-z]*)\d+\.\d+")  # a loss, or the decay of an average
_VERSION = re.compile(r"[vV]\d+(?:\.\d+)*")
_ROUGH = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([kKmMbB])|(\d)[eE](\d)")  # 100k, 1.5M, 1e5
_SHORT = re.compile(r"\d{1,3}%|(?:[es]|ep|it|st)\d+")
_MAGNITUDES = {"k": 10**3, "m": 10**6, "b": 10**9}


_DATE = re.compile(
    r"(?<!\d)(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_T .+]?(?:[01]\d|2[0-3])(?:[-_:.h][0-5]\d(?:[-_:.m][0-5]\d)?|[0-5]\d[0-5]\d))?(?!\d)"
)


_STEP_BEFORE = re.compile(r".*(?:step|iter|epoch|update|ckpt|checkpoint)s?[-_=]?", re.IGNORECASE)
_HASH = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f]{6,64}")
_DATED = "\x1f"  # in the place of a date
LEAST_PADDED = 3  # digits: `000300` is a counter, `02` may be anything
MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Parts:
    """Facts in a file's name.

    step: None: the name alone shows no step.  is_told: a word beside the number marks the number
    as a step.  bare: numbers without a word, if there is no step: the number that differs between
    the names of a `series` may be the step.  words: the content of the file, or the run of the
    file; key: the rest that the files of a checkpoint have in common beside the step.  role: the
    role of the file, equal in every checkpoint of a training.  is_component: all words are parts of
    a training's state.  coarse: numbers of a coarser count beside the step, as of the epoch.
    """

    name: str
    ending: str
    step: int | None = None
    is_told: bool = False
    bare: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    rank: str = ""
    shard: tuple[str, int, int] | None = None  # text before the number, number, count
    key: tuple[str, ...] = ()
    role: str = ""
    is_component: bool = False
    coarse: tuple[str, ...] = ()

    @property
    def kin(self) -> tuple[int | None, tuple[str, ...]]:
        """Key that is equal for the files of a checkpoint: the step, or the only number, and the
        rest."""
        if len(self.bare) == 1:
            return int(self.bare[0][:MOST_DIGITS]), self.key
        return self.step, (*self.key, *self.bare)

    @property
    def series(self) -> tuple[object, ...]:
        """Key that is equal for names that differ only in the numbers without a word."""
        return self.words, self.key, self.rank, self.ending

    @property
    def strange(self) -> tuple[str, ...]:
        """Words that are no part of a training's state, as the name of a model or of a run."""
        return tuple(word for word in self.words if word not in _STATE_WORDS)

    @property
    def stamps(self) -> tuple[str, ...]:
        """Dates and hashes, which tell the saves of a training apart where no step does."""
        return tuple(one for one in self.key if _DATE.fullmatch(one) or _HASH.fullmatch(one))

    @property
    def marks(self) -> tuple[str, ...]:
        """Stamps, and versions and rough numbers, which may tell saves apart: `v4`, `400k`, `40%`,
        `e4`."""
        kinds = (_DATE, _HASH, _VERSION, _ROUGH, _SHORT)
        return tuple(one for one in self.key if any(kind.fullmatch(one) for kind in kinds))

    @property
    def is_moment(self) -> bool:
        """An average of an optimizer, by letters that count only beside a state of the number."""
        return self.kin[0] is not None and _MOMENTS.issuperset(self.words) and bool(self.words)

    @property
    def is_state_text(self) -> bool:
        """A description that each save writes: `trainer_state.json`."""
        return (
            self.ending.lower() == ".json"
            and self.is_component
            and not _STATE_TEXT.isdisjoint(self.words)
            and _FIXED_TEXT.isdisjoint(self.words)
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """Files of a folder that form a checkpoint.  name: the file after which the checkpoint is
    called.  why: the reason for the group; missing: known parts that are absent."""

    name: str
    files: tuple[str, ...]
    step: int | None
    why: str
    missing: tuple[str, ...] = ()


# --- names ----------------------------------------------------------------------------------------


def _ending_of(name: str) -> str:
    low = name.lower()
    for ending in (*_ALWAYS, *_PERHAPS, *PACKED, ".index.json", *_BESIDE):
        if low.endswith(ending):
            found = ending
            for longer in (".weights.h5", ".pth.tar", ".pt.tar", ".index.json"):
                found = longer if low.endswith(longer) else found
            return name[-len(found) :]
    dot = name.rfind(".")
    last = name[dot + 1 :]
    return name[dot:] if dot > 0 and last.isalnum() and not last.isdigit() else ""


@lru_cache(1 << 18)
def parts_of(name: str) -> Parts:
    """Parse a file's own name, without the folder."""
    ending = _ending_of(name)
    stem, shard = name[: len(name) - len(ending)], None
    if "of" in stem and (match := _SHARD.fullmatch(stem)):
        shard = (f"{match[1]}{match[4]}{ending}", int(match[2][:9]), int(match[3][:9]))
        stem = f"{match[1]}{match[4]}"
    read = _Read()
    pieces = _pieces(_without_dates(stem, read.key))
    lows = [piece.lower() for piece, _ in pieces]
    for place, (piece, is_glued) in enumerate(pieces):
        before = lows[place - 1] if place else ""
        if piece.isdigit():
            read.number(piece, is_glued, before, lows[place + 1 : place + 3])
        else:
            read.word(piece, before)
    step = read.step()
    is_told, words, key = bool(read.told) and step is not None, read.content(), read.key
    if is_told:
        key = key + read.bare
    bare = () if step is not None else tuple(read.bare)
    rank = " ".join(read.ranks)
    role = f"{'_'.join(words)}{ending} {rank}".rstrip()
    is_component = bool(words) and _STATE_WORDS.issuperset(_without_moments(words))
    coarse = read.coarse() if is_told else ()
    facts = bare, words, rank, shard, tuple(sorted(key)), role, is_component, coarse
    return Parts(name, ending, step, is_told, *facts)


class _Read:
    """The pieces of a name, by what they are.  told: numbers with the word of a step, by word;
    bare: numbers without a word; is_sure: nothing in the name may explain a bare number as the size
    or the version of something."""

    def __init__(self) -> None:
        self.words, self.key, self.ranks = list[str](), list[str](), list[str]()
        self.told, self.bare, self.is_sure = dict[str, str](), list[str](), True
        self._is_passed = False  # the number before is the epoch of `checkpoint_EPOCH_STEP`

    def number(self, piece: str, is_glued: bool, before: str, after: Sequence[str]) -> None:
        if self._is_passed:
            before, self._is_passed = _CHECKPOINTS[0], False
        if before in _RANK_WORDS or (before == "state" and not _RANDOM.isdisjoint(self.words)):
            self.ranks.append(f"{before}{piece}")
            if self.words and self.words[-1] == before and before != "states":
                self.words.pop()
        elif before in _CHECKPOINTS and _is_at_least(after, piece):
            self._is_passed = True
        elif before in _STEP_WORDS:
            self.told[before] = piece
        elif after and after[0] in _AFTER and not after[-1].isdigit():
            self.told[after[0]] = piece
        elif self._is_moment(piece):
            self.bare.append(piece)
            self.is_sure &= len(self.words) > 1
        elif before in _NO_COUNT or _VERSION.fullmatch(before) or self._is_size():
            self.key.append(piece)
        else:
            self.bare.append(piece)
            self.is_sure &= before not in _SELECTORS and (not is_glued or piece[0] == "0")

    def word(self, piece: str, before: str) -> None:
        low = piece.lower()
        if before in _STEP_WORDS and (rough := _ROUGH.fullmatch(piece)):
            self.told[before] = _digits_of(rough)
        elif low in _SELECTORS:
            self.key.append(low)
        elif low[:-1] in _OPTIMIZERS and low[-1] in _MOMENTS:  # `adamv`
            self.words += [low[:-1], low[-1]]
        elif before in _OPTIMIZERS and (moment := _is_glued_moment(before, low)):
            self.words.append(moment[1])
            self.bare.append(moment[2])
        elif low.isalpha():
            self.words.append(low)
        elif piece:
            self.key += [piece] if piece != _DATED else []
            self.is_sure = False

    def _is_moment(self, piece: str) -> bool:
        """Return True if the last word is the `v` of an optimizer and no version: after the word of
        an optimizer, or alone before a long number."""
        if self.words[-1:] != ["v"]:
            return False
        is_alone = len(self.words) == 1 and len(piece) >= LEAST_PADDED
        return is_alone or not _OPTIMIZERS.isdisjoint(self.words[-2:-1])

    def _is_size(self) -> bool:
        """Return True if the last word is the letter of a model's size: `vit_b_16`.  The letters
        of a generator and a discriminator are none."""
        last = self.words[-1] if self.words else ""
        is_letter = len(last) == 1 and last not in "gd"
        return is_letter and any(word not in _STATE_WORDS for word in self.words[:-1])

    def content(self) -> tuple[str, ...]:
        """Return the words without those that a number explains, which do not name the content."""
        no_content = _STEP_WORDS if self.told or self.bare else _STEP_WORDS - _STATE_WORDS
        return tuple(one for one in self.words if one not in no_content and one != "rank")

    def _finest(self) -> str:
        """Return the word of the finest count, which is the step; empty: no word."""
        return min(
            self.told,
            key=lambda told: next(
                (place for place, word in enumerate(_STEP_ORDER) if told.startswith(word)),
                len(_STEP_ORDER),
            ),
            default="",
        )

    def coarse(self) -> tuple[str, ...]:
        finest = self._finest()
        return tuple(f"{word}{n}" for word, n in sorted(self.told.items()) if word != finest)

    def step(self) -> int | None:
        if told := self.told.get(self._finest(), ""):
            return int(told) if len(told) <= MOST_DIGITS else None
        if len(self.bare) != 1 or len(self.bare[0]) > MOST_DIGITS:
            return None
        (bare,) = self.bare
        is_counter = bare[0] == "0" and len(bare) >= LEAST_PADDED
        is_of_state = self.is_sure and _KNOWN.issuperset(_without_moments(self.content()))
        return int(bare) if is_counter or is_of_state else None


def _is_glued_moment(before: str, low: str) -> re.Match[str] | None:
    """Match `v400` after the word of an optimizer; `optim_v4` is a version."""
    found = re.fullmatch(r"(m|v)(\d+)", low)
    is_version = found and before.startswith("opt") and len(found[2]) < LEAST_PADDED
    return None if is_version else found


def _without_moments(words: Sequence[str]) -> list[str]:
    """Return the words without the letters of an average that follow the word of an optimizer."""
    return [
        word for place, word in enumerate(words)
        if word not in _MOMENTS or _OPTIMIZERS.isdisjoint(words[:place])
    ]  # fmt: skip


def _is_at_least(after: Sequence[str], piece: str) -> bool:
    return bool(after) and after[0].isdigit() and int(after[0]) >= int(piece)


def _without_dates(stem: str, key: list[str]) -> str:
    """Move the dates of a name to the key."""
    if "20" not in stem and "19" not in stem:
        return stem
    for match in reversed(list(_DATE.finditer(stem))):
        before = stem[: match.start()]
        if match[1] or not _STEP_BEFORE.fullmatch(before):  # else a step of eight digits
            key.append(match[0])
            stem = f"{before} {_DATED} {stem[match.end() :]}"
    return stem


def _pieces(stem: str) -> list[tuple[str, bool]]:
    """Split into words and numbers: two pieces of `epoch3` and `model000300`, which are marked as
    glued, and one piece of `resnet50`."""
    pieces = list[tuple[str, bool]]()
    for text in _PIECES.split(stem):
        if text.isalpha() or text.isdigit():
            pieces.append((text, False))
        elif match := _FRACTION.fullmatch(text):
            pieces.append((text if match[1] in ("v", "V") else match[1], False))
        elif _VERSION.fullmatch(text) or _ROUGH.fullmatch(text):
            pieces.append((text, False))
        else:
            for one in filter(None, text.split(".")):
                pieces += _unglued(one)
    return pieces


def _unglued(piece: str) -> list[tuple[str, bool]]:
    if (match := _GLUED.fullmatch(piece)) and match[1].lower() in _SPLIT:
        return [(match[1], False), (match[2], True)]
    if (match := _BEFORE.fullmatch(piece)) and match[2].lower() in _AFTER:
        return [(match[1], True), (match[2], False)]
    if match := _CAMEL.fullmatch(piece):
        return [(match[1], False), (match[2], False), (match[3], True)]
    return [(piece, False)]


def _digits_of(rough: re.Match[str]) -> str:
    if rough[3]:
        return str(int(rough[3]) * 10 ** int(rough[4]))
    return str(round(float(rough[1]) * _MAGNITUDES[rough[2].lower()]))


@lru_cache(1 << 18)
def is_state(name: str) -> bool:
    """Return True if the name marks a file of a training's state."""
    low = name.lower()
    if low.endswith(_ALWAYS):
        return True
    is_packed = low.endswith(PACKED)
    if not is_packed and not low.endswith(_PERHAPS):
        return _without_ending(name)
    found = parts_of(name)
    if is_packed and found.kin[0] is None:
        return False
    if any(word in _STATE_WORDS for word in found.words):
        return True
    return not found.words and (found.is_told or any(one in _SELECTORS for one in found.key))


def _without_ending(name: str) -> bool:
    """Return True for `checkpoint_100` (Flax) and `g_00005000` (HiFi-GAN)."""
    if not name[-1:].isdigit():
        return False
    if re.fullmatch(r"checkpoint_\d+", name):
        return True
    if not re.fullmatch(r"[a-z_]+_\d{6,}", name):
        return False
    found = parts_of(name)
    return found.step is not None and found.is_component


def may_be_state(name: str) -> bool:
    """Return True if files with this ending may be a training's state."""
    return name.lower().endswith((*_ALWAYS, *_PERHAPS))


def has_data(name: str) -> bool:
    """Return True for any file but a text, a log, a picture or a hidden file."""
    base = name.rpartition("/")[2]
    is_log = ".tfevents." in base or base.rpartition(".")[2].lower() in _NO_STATE
    return not base.startswith(".") and not is_log


def are_parts(names: Collection[str]) -> set[str]:
    """Return the files that each save writes.  Where no name marks a file of a state, these are all
    files with data; without the chunks of Zarr arrays, of which a missing one means zeros."""
    parts = set(filter(is_part, names))
    if any(is_state(name.rpartition("/")[2]) for name in names):
        return parts
    arrays = tuple(name.rpartition("/")[0] + "/" for name in names if name.endswith(_ARRAYS))
    return parts | {name for name in names if has_data(name) and not name.startswith(arrays)}


_ARRAYS = ("/.zarray", "/zarr.json")


def is_part(name: str) -> bool:
    """Return True if every save writes such a file: state, or a description of state."""
    base = name.rpartition("/")[2]
    is_of_zarr = base in (".zarray", "zarr.json")
    return (
        is_state(base)
        or base.lower().endswith(_BESIDE)
        or is_of_zarr
        or is_marker(base)
        or (_is_moment(base))
    )


def _is_moment(name: str) -> bool:
    return name.lower().endswith(_PERHAPS) and parts_of(name).is_moment


def is_called_checkpoint(name: str) -> bool:
    """Return True if a folder is called like a single checkpoint without a step: `best`,
    `last_checkpoint`, `CKPT+2026-11-25+12-30-00`.  `checkpoint` may contain several checkpoints."""
    found = parts_of(name)
    words = {word for word in found.words if word not in _CHECKPOINTS}
    is_dated = any(map(_DATE.fullmatch, found.key)) and name.lower().startswith(_CHECKPOINTS)
    is_selected = bool(found.key) and _SELECTORS.issuperset(found.key) and not found.bare
    is_plain = found.step is None and not found.rank and not found.ending
    return is_plain and words <= {"model", "weights", "state"} and (is_dated or is_selected)


# Folders of two trainings, or of anything, that are called by one of these.
_NO_PARTS = {"a", "b", "d", "g", "do", "train", "trainer", "training", "config", "args", "meta"}
_CONTAINERS = {"checkpoints", "ckpts", "snapshots", "gen", "disc", "enc", "dec", "opts"}
_OF_A_RANK = re.compile(r"(?:rank|mp|tp|pp|dp|shard|proc|process|gpu|device|partition)\d+")


def is_part_of_a_training(name: str) -> bool:
    """Return True if a folder is called by a part of a training's state (`weights`, `optim`), or
    by a rank: other folders beside this folder may have the other parts of a save."""
    found = parts_of(name)
    if found.step is not None or found.bare or found.key or found.ending:
        return False
    is_rank = all(map(_OF_A_RANK.fullmatch, found.rank.split()))
    words = (_STATE_WORDS | _CONTAINERS) - _NO_PARTS
    return is_rank and bool(found.words or found.rank) and words.issuperset(found.words)


def is_run(name: str) -> bool:
    """Return True if a folder's name shows a run or a version: `run1`, `seed_0`."""
    return not (_NO_STEP | {"fold", "folds"}).isdisjoint(re.findall(r"[a-z]+", name.lower()))


def step_of_folder(name: str) -> int | None:
    """Return the step in a folder's name: the number after a step word, or a name of digits."""
    found = parts_of(name)
    if found.step is None or not (found.is_told or name.isdigit()):
        return None
    return found.step


# --- units ----------------------------------------------------------------------------------------


def grouped(
    names: Iterable[str],
    rules: Sequence[NameRule] = (),
    saves: Sequence[frozenset[str]] = (),
    folder: str = "",
) -> list[Unit]:
    """Return the units of a folder, by the names of the files.  A file in no unit is no
    checkpoint, or is a single-file checkpoint without a step.  saves: the files that one save of a
    recorded run wrote, for each.  folder: the folder's own name."""
    left = dict.fromkeys(sorted(names))
    units = list[Unit]()
    own_rules = [rule for rule in rules if not rule.is_over_folders]
    for rule in own_rules:
        units += _by_rule(rule, left) if not rule.is_of_a_step else []
    by_key: defaultdict[tuple[int | None, tuple[str, ...]], list[Parts]] = defaultdict(list)
    for name in left:
        if is_state(name):
            found = parts_of(name)
            by_key[found.kin].append(found)
        elif name.lower().endswith(_BESIDE):  # may belong to a step, as `meta_000300.json` does
            found = parts_of(name)
            is_index = found.ending.endswith(".index.json")
            if found.kin[0] is not None or is_index or found.stamps or found.is_state_text:
                by_key[found.kin].append(found)
        elif _is_moment(name):
            found = parts_of(name)
            by_key[found.kin].append(found)
        elif name.rpartition(".")[2].lower() in _WITH_STATE:  # `optim_300.dat`
            found = parts_of(name)
            if found.step is not None and found.is_component:
                by_key[found.kin].append(found)
    _add_equal_stems(left, by_key)
    candidates = [parts_of(name) for name in left if may_be_state(name) or is_marker(name)]
    add_companions(candidates, by_key, is_state, bool(folder and parts_of(folder).stamps))
    for (number, _), members in by_key.items():
        if number is None:
            units += _stepless(members)
            continue
        for some in _by_epoch(members):
            units += _of_a_number(number, some)
    for rule in own_rules:
        units = _with_step(units, rule, left) if rule.is_of_a_step else units
    return _with_saves(units, left, saves) if saves else units


def _with_step(units: Sequence[Unit], rule: NameRule, left: Iterable[str]) -> list[Unit]:
    """Return the units with the step that a rule of one name states; such a file alone is a
    checkpoint, too."""
    steps = {name: int(m["step"]) for name in left if (m := rule.patterns[0].fullmatch(name))}
    made = list[Unit]()
    for unit in units:
        step = next((steps.pop(name) for name in unit.files if name in steps), None)
        why = f"{unit.why}, {BY_STEP} {rule.text!r}"
        made.append(unit if step is None else replace(unit, step=step, why=why))
    why = f"one file, {BY_STEP} {rule.text!r}"
    return [*made, *(Unit(name, (name,), step, why) for name, step in steps.items())]


def _add_equal_stems(
    names: Iterable[str],
    by_key: dict[tuple[int | None, tuple[str, ...]], list[Parts]],
) -> None:
    """Add files of any other ending whose name has a step and is else that of a state's file."""
    taken = {one.name for members in by_key.values() for one in members}
    stems: dict[str, list[Parts]] | None = None
    for name in names:
        if name in taken or name.rpartition(".")[2].lower() in _NO_STATE:
            continue
        found = parts_of(name)
        if found.kin[0] is None or not found.ending:
            continue
        if stems is None:
            stems = {
                one.name.removesuffix(one.ending): members
                for (number, _), members in by_key.items() if number is not None
                for one in members if is_state(one.name)
            }  # fmt: skip
        if (members := stems.get(name.removesuffix(found.ending))) is not None:
            members.append(found)


def _by_epoch(members: list[Parts]) -> list[list[Parts]]:
    """Divide the files of a step by the epoch, where the steps of each epoch begin anew."""
    if len({one.coarse for one in members if one.coarse}) < 2:
        return [members]
    epochs: defaultdict[tuple[str, ...], list[Parts]] = defaultdict(list)
    for one in members:
        epochs[one.coarse].append(one)
    return list(epochs.values())


def _with_saves(
    units: Sequence[Unit], left: Collection[str], saves: Sequence[frozenset[str]]
) -> list[Unit]:
    """Add groups of files that one save wrote and whose names show no rule: no step, no selector,
    and no group."""
    single = {unit.name for unit in units if len(unit.files) == 1 and unit.step is None}
    of_group = {name for unit in units for name in unit.files} - single
    made, taken = list[Unit](), set[str]()
    for save in saves:
        own = sorted(
            name for name in save
            if name in left and name not in of_group and name not in taken and _shows_no_rule(name)
        )  # fmt: skip
        state = [name for name in own if name.rpartition(".")[2].lower() not in _NO_STATE]
        if len(own) > 1 and state:
            lead = min(state, key=lambda name: (_place_as_lead(parts_of(name)), name))
            made.append(Unit(lead, tuple(own), None, BY_SAVE))
            taken.update(own)
    return [*(unit for unit in units if unit.name not in taken), *made]


def _shows_no_rule(name: str) -> bool:
    found = parts_of(name)
    return found.kin[0] is None and found.shard is None and _SELECTORS.isdisjoint(found.key)


def _by_rule(rule: NameRule, left: dict[str, None]) -> list[Unit]:
    found: defaultdict[int | None, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in left:
        for number, pattern in enumerate(rule.patterns):
            if match := pattern.fullmatch(name):
                told = match.groupdict().get("step")
                found[int(told) if told else None][number].append(name)
                break
    units, wanted = [], rule.text.split()
    for step, members in found.items():
        names = [name for number in sorted(members) for name in members[number]]
        lost = [one for number, one in enumerate(wanted) if number not in members]
        lost = [one.replace("{step}", str(step)) for one in lost]
        why = f"{BY_RULE} {rule.text!r}"
        units.append(Unit(names[0], tuple(names), step, why, tuple(lost)))
        for name in names:
            del left[name]
    return units


def _of_a_number(number: int, members: Sequence[Parts]) -> list[Unit]:
    """Group the files of a step, or of a number that may be a step."""
    if len(members) == 1 and is_state(members[0].name):
        return [_unit(members, members[0].step, "one file")]
    if not any(is_state(one.name) for one in members):
        return []
    step = next((one.step for one in members if one.step is not None), None)
    what = "number" if step is None else "step"
    why = f"files of {what} {number} in one folder" if len(members) > 1 else "one file"
    return [_unit(members, step, why)]


def _stepless(members: Sequence[Parts]) -> list[Unit]:
    """Group parts of a training's state without a step, and the shards of any kind."""
    state = [one for one in members if is_state(one.name)]
    beside_all = [one for one in members if one not in state]
    texts = [one for one in beside_all if one.is_state_text or (one.stamps and one.is_component)]
    if not state:
        return []
    # `last.ckpt` and `last.pt` come from two different savers.
    is_each_time = not _EACH_TIME.isdisjoint(members[0].key) and any(
        one.words or one.ending.lower() not in _BY_THEMSELVES for one in state
    )
    parts = [one for one in state if one.is_component or one.rank or is_each_time]
    if len({one.role for one in parts}) < 2:
        texts = [one for one in texts if one.stamps]
    if parts:  # `vectorizer_v3.joblib` beside `model_v3.joblib`
        texts += [
            one for one in beside_all
            if (may_be_state(one.name) or is_marker(one.name)) and one not in texts
        ]  # fmt: skip
    is_one = len({one.role for one in (*parts, *texts)}) < 2
    if not parts or (is_one and not any(one.shard for one in parts)):
        parts, texts = [], []
    runs: defaultdict[tuple[str, ...], list[Parts]] = defaultdict(list)
    for one in state:  # `bert_model.pt` and `bert_optimizer.pt`
        if one not in parts and one.shard is None and 0 < len(one.strange) < len(one.words):
            runs[one.strange].append(one)
    sets: defaultdict[str, list[Parts]] = defaultdict(list)
    for one in state:
        if one.shard is not None and one not in parts:
            sets[one.shard[0]].append(one)
    indices = [one for one in beside_all if one not in texts]
    made = [(some, "shards, by their numbers") for some in sets.values()]
    made += [
        (some, "parts of one training's state in one folder")
        for some in runs.values()
        if len({one.role for one in some}) > 1
    ]
    if parts:
        made.append(([*parts, *texts], "parts of one training's state in one folder"))
    units = []
    for some, why in made:
        starts = {one.shard[0] for one in some if one.shard is not None}
        beside = [one for one in indices if one.name.removesuffix(".index.json") in starts]
        units.append(_unit([*some, *beside], None, why))
    return units


def _unit(members: Sequence[Parts], step: int | None, why: str) -> Unit:
    if len(members) == 1 and members[0].shard is None:
        return Unit(members[0].name, (members[0].name,), step, why)
    names = sorted(one.name for one in members)
    state = [one for one in members if is_state(one.name)]
    lead = min(state, key=lambda one: (_place_as_lead(one), one.name))
    return Unit(lead.name, tuple(names), step, why, lost_shards(names))


def lost_shards(names: Iterable[str]) -> tuple[str, ...]:
    """Name the missing shards of files numbered `-00001-of-00004`."""
    sets: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name in names:
        shard = parts_of(name).shard
        if shard is not None:
            sets[shard[0], shard[2]][shard[1]] = name
    said = []
    for (_, count), there in sorted(sets.items()):
        first = 0 if 0 in there else 1
        n_lost = count - sum(first <= number < count + first for number in there)
        if n_lost:
            lost = next(n for n in range(first, count + first) if n not in there)
            name = next(iter(there.values()))
            match = re.search(r"(?<=[-_.])\d+(?=-of-)", name)
            begin, end = match.span() if match else (0, 0)
            more = f" and {n_lost - 1} more of {count}" if n_lost > 1 else ""
            said.append(f"{name[:begin]}{lost:0{end - begin}d}{name[end:]}{more}")
    return tuple(said)


def _place_as_lead(one: Parts) -> int:
    return min((_LEADS.index(word) for word in one.words if word in _LEADS), default=len(_LEADS))
