"""Facts in the name of a file or folder: the step, the content, the rank, the number of a shard.

Knows names; reads no file.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.save.unit.companions import is_marker

__all__ = [
    "DESCRIPTIONS",
    "MOST_DIGITS",
    "NO_STATE",
    "PACKED",
    "SELECTORS",
    "Parts",
    "are_parts",
    "has_data",
    "is_called_checkpoint",
    "is_moment",
    "is_part",
    "is_part_of_a_training",
    "is_run",
    "is_state",
    "may_be_state",
    "number_of_folder",
    "parts_of",
    "step_of_folder",
]

# Endings that always mark a training's state ...
_ALWAYS = (
    *(".pt", ".pth", ".ckpt", ".pt2", ".safetensors", ".keras", ".weights.h5", ".pth.tar"),
    *(".pt.tar", ".gguf", ".msgpack", ".pdparams", ".pdopt", ".nemo", ".eqx", ".distcp"),
    *(".pdstates", ".states", ".state", ".ubj", ".cbm", ".mpk", ".weights"),
)


# ... and endings that count only with a matching name: data sets and results use the endings too.
_PERHAPS = (
    ".zip", ".npz", ".npy", ".h5", ".hdf5", ".pkl", ".pickle", ".joblib", ".bin", ".params",
    ".th", ".tar", ".jld2",
)  # fmt: skip


# ... and endings that also need a number in the name.
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")


NO_STATE = {  # endings of files without a training's state
    "txt", "log", "csv", "tsv", "json", "jsonl", "yaml", "yml", "md", "html", "png", "jpg", "jpeg",
    "gif", "svg", "pdf", "mp4", "wav", "toml", "py", "sh", "part", "lock", "bak", "old", "swp",
}  # fmt: skip


DESCRIPTIONS = (".json", ".yaml", ".yml", ".toml")  # may belong to a checkpoint, but holds no state
SELECTORS = {"best", "last", "latest", "final", "top", "worst", "init", "initial", "backup"}


_STEP_WORDS = {
    "step", "steps", "globalstep", "global", "iter", "iters", "iteration", "it", "epoch", "epochs",
    "ep", "ckpt", "checkpoint", "update", "updates", "round", "ba", "epochstep", "chkpnt",
}  # fmt: skip


# ... and the words that may follow a number: `12epoch.pth`, `3000_steps`.
_AFTER = {"step", "steps", "iter", "iters", "iteration", "iterations", "epoch", "epochs", "updates"}
_CHECKPOINTS = ("ckpt", "checkpoint")


# A number after a word of _NO_STEP is a size, a version or the number of a run, and no step, also
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


_STEP_ORDER = (  # by how the words begin; the finest first
    "step",
    "globalstep",
    "global",
    "it",
    "update",
    "ba",
    "ckpt",
    "checkpoint",
    "chkpnt",
    "round",
    "ep",
)


# The two averages of Adam: a `v` after the word of an optimizer is no version.
_OPTIMIZERS = {"adam", "adamw", "optim", "optimizer", "opt", "sgd", "momentum"}
_MOMENTS = {"m", "v", "mu", "nu", "exp", "avg", "sq", "moment", "moments"}


# Words of a description written by each save; a configuration may be written only once.
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
    "dynamics", "reward", "booster", "criterion", "normalizer", "vecnormalize", "embedding", "qf",
    "embeddings",
    "g", "d", "do", "a", "b", "averaged", "swa", "master", "meta", "metadata", "args", "config",
}  # fmt: skip


# Parts with several numbered copies in a model: `optim1`, `step_10_rng_0`.
_SEVERAL = {
    *("optim", "optimizer", "optimizers", "opt", "adam", "sgd", "scheduler", "sched", "scaler"),
    *("rng", "random", "sampler", "dataloader", "loader", "ema", "critic", "qf", "encoder"),
    *("decoder", "head", "buffer", "replay"),
}


_METRICS = {"loss", "acc", "accuracy", "val", "valid", "score", "metric", "error", "auc", "map"}
_RANDOM = {"rng", "random"}  # each rank has a separate state
_NO_COUNT, _KNOWN = _NO_STEP | _METRICS, _STATE_WORDS | _METRICS
_SPLIT = _STEP_WORDS | _RANK_WORDS | _STATE_WORDS
_SHARD = re.compile(r"(.*?)[-_.](\d+)[-_]of[-_](\d+)(.*)")
_PIECES = re.compile(r"(?:[^\w.%\x1f]|_)+")
_BRACKET = re.compile(r"[(\[{]([^()\[\]{}]*)[)\]}]")
_GLUED = re.compile(r"([A-Za-z]+)(\d+)")
_BEFORE = re.compile(r"(\d+)([A-Za-z]+)")  # 12epoch
_CAMEL = re.compile(r"(.*[a-z])(Epoch|Step|Iter|Iteration|Checkpoint|Ckpt|Update)(\d+)")
_FRACTION = re.compile(r"([A-Za-z]*)\d+\.\d+")  # a loss, or the decay of an average
_METRIC = re.compile(r"\d+\.\d+")
_AVERAGES = {"ema", "averaged", "swa", "avg", "decay"}
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
    as a step.  bare: numbers without a word, if there is no step: a number that differs between the
    names of a `series` may be the step.  words: the content of the file, or the run of the file.
    key: the rest of the name, equal for the files of a checkpoint.  role: the role of the file,
    equal in every checkpoint of a training.  is_component: all words are parts of a training's
    state.  coarse: numbers of a coarser count beside the step, such as the epoch.  metric: a
    fraction in a name without a step, such as a loss.  numbered: the only number may be the number
    of a part with several copies in a model: `optim1`.
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
    metric: str = ""
    numbered: bool = False

    @property
    def kin(self) -> tuple[int | None, tuple[str, ...]]:
        """Key of a checkpoint's files: the step, or the only number, and the rest of the name."""
        if len(self.bare) == 1:
            return int(self.bare[0][:MOST_DIGITS]), self.key
        return self.step, (*self.key, *self.bare)

    @property
    def series(self) -> tuple[object, ...]:
        """Key of a series: names in a series differ only in the numbers without a word."""
        return self.words, self.key, self.rank, self.ending

    @property
    def strange(self) -> tuple[str, ...]:
        """Words outside a training's state, such as the name of a model or a run."""
        return tuple(word for word in self.words if word not in _STATE_WORDS)

    @property
    def stamps(self) -> tuple[str, ...]:
        """Dates and hashes, to tell the saves of a training apart without a step."""
        return tuple(word for word in self.key if _DATE.fullmatch(word) or _HASH.fullmatch(word))

    @property
    def marks(self) -> tuple[str, ...]:
        """Stamps, versions and rough numbers, to tell saves apart: `v4`, `400k`, `40%`, `e4`."""
        kinds = (_DATE, _HASH, _VERSION, _ROUGH, _SHORT)
        return tuple(word for word in self.key if any(kind.fullmatch(word) for kind in kinds))

    @property
    def is_moment(self) -> bool:
        """True for an average of an optimizer; counts only beside a state of equal number."""
        return self.kin[0] is not None and _MOMENTS.issuperset(self.words) and bool(self.words)

    @property
    def is_history(self) -> bool:
        """True for `history.json`, as of skorch: of a save if written with the save.  A program may
        also write the history only at the end of the training."""
        return self.words == ("history",) and self.ending.lower() == ".json"

    @property
    def is_state_text(self) -> bool:
        """True for a description written by each save: `trainer_state.json`."""
        return (
            self.ending.lower() == ".json"
            and self.is_component
            and not _STATE_TEXT.isdisjoint(self.words)
            and _FIXED_TEXT.isdisjoint(self.words)
        )


def _ending_of(name: str) -> str:
    low = name.lower()
    for ending in (*_ALWAYS, *_PERHAPS, *PACKED, ".index.json", *DESCRIPTIONS):
        if low.endswith(ending):
            best = ending
            for longer in (".weights.h5", ".pth.tar", ".pt.tar", ".index.json"):
                best = longer if low.endswith(longer) else best
            return name[-len(best) :]
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
    pieces = _pieces(_without_dates(_BRACKET.sub(_without_bracket, stem), read.key))
    lows = [piece.lower() for piece, _ in pieces]
    for place, (piece, is_glued) in enumerate(pieces):
        before = lows[place - 1] if place else ""
        if piece.isdigit():
            read.number(piece, is_glued, before, lows[place + 1 : place + 3])
        else:
            read.word(piece, before)
    step = read.step()
    is_told, words, key = bool(read.counts) and step is not None, read.content(), read.key
    if is_told:
        read.ranks += [f"{part}{number}" for part, number in read.of_parts]
        of_parts = [number for _, number in read.of_parts]
        key = key + [number for number in read.bare if number not in of_parts]
    numbered = not is_told and len(read.bare) == len(read.of_parts) == 1
    bare = () if step is not None else tuple(read.bare)
    rank = " ".join(read.ranks)
    role = f"{'_'.join(words)}{ending} {rank}".rstrip()
    is_component = bool(words) and _STATE_WORDS.issuperset(_without_moments(words))
    coarse = read.coarse() if is_told else ()
    metric = " ".join(read.metrics) if step is None and not bare else ""
    facts = (
        bare,
        words,
        rank,
        shard,
        tuple(sorted(key)),
        role,
        is_component,
        coarse,
        metric,
        numbered,
    )
    return Parts(name, ending, step, is_told, *facts)


def _without_bracket(match: re.Match[str]) -> str:
    """Return the content of a bracket with a word: `model (step 40)`.  A bracket with a number only
    stays: `model (1)` is a copy made by hand."""
    is_number = not any(map(str.isalpha, match[1]))
    return f".copy{match[1]}." if is_number else f" {match[1]} "


class _Read:
    """The pieces of a name, by kind.

    counts: numbers with a step word, by word.  bare: numbers without a word.  is_sure: no piece of
    the name may explain a bare number as a size or a version.
    """

    def __init__(self) -> None:
        self.words, self.key, self.ranks = list[str](), list[str](), list[str]()
        self.counts, self.bare, self.is_sure = dict[str, str](), list[str](), True
        self.metrics, self.of_parts = list[str](), list[tuple[str, str]]()
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
            self.counts[before] = piece
        elif after and after[0] in _AFTER and not after[-1].isdigit():
            self.counts[after[0]] = piece
        elif self._is_moment(piece):
            self.bare.append(piece)
            self.is_sure &= len(self.words) > 1
        elif before in _NO_COUNT or _VERSION.fullmatch(before) or self._is_size():
            self.key.append(piece)
        else:
            self._without_word(piece, is_glued, before)

    def _without_word(self, piece: str, is_glued: bool, before: str) -> None:
        """Note a number without an explaining word."""
        self.bare.append(piece)
        self.is_sure &= before not in SELECTORS and (not is_glued or piece[0] == "0")
        if before in _SEVERAL and len(piece) < LEAST_PADDED:
            self.of_parts.append((before, piece))

    def word(self, piece: str, before: str) -> None:
        low = piece.lower()
        if _METRIC.fullmatch(piece):  # else the decay of an average
            self.metrics += [piece] if _AVERAGES.isdisjoint(self.words) else []
        elif before in _STEP_WORDS and (rough := _ROUGH.fullmatch(piece)):
            self.counts[before] = _digits_of(rough)
        elif low in SELECTORS:
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
        """Return True if the last word is the `v` of an optimizer and no version.

        The `v` follows the word of an optimizer, or stands alone before a long number.
        """
        if self.words[-1:] != ["v"]:
            return False
        is_alone = len(self.words) == 1 and len(piece) >= LEAST_PADDED
        return is_alone or not _OPTIMIZERS.isdisjoint(self.words[-2:-1])

    def _is_size(self) -> bool:
        """Return True if the last word is the letter of a model's size: `vit_b_16`.

        The letters of a generator and a discriminator are no sizes.
        """
        last = self.words[-1] if self.words else ""
        is_letter = len(last) == 1 and last not in "gd"
        return is_letter and any(word not in _STATE_WORDS for word in self.words[:-1])

    def content(self) -> tuple[str, ...]:
        """Return the words that name the content, without the words explained by a number."""
        no_content = _STEP_WORDS if self.counts or self.bare else _STEP_WORDS - _STATE_WORDS
        return tuple(word for word in self.words if word not in no_content and word != "rank")

    def _finest(self) -> str:
        """Return the word of the finest count, the step; empty: no word."""
        return min(
            self.counts,
            key=lambda way: next(
                (place for place, word in enumerate(_STEP_ORDER) if way.startswith(word)),
                len(_STEP_ORDER),
            ),
            default="",
        )

    def coarse(self) -> tuple[str, ...]:
        finest = self._finest()
        return tuple(f"{word}{n}" for word, n in sorted(self.counts.items()) if word != finest)

    def step(self) -> int | None:
        if digits := self.counts.get(self._finest(), ""):
            return int(digits) if len(digits) <= MOST_DIGITS else None
        if len(self.bare) != 1 or len(self.bare[0]) > MOST_DIGITS:
            return None
        (bare,) = self.bare
        is_counter = bare[0] == "0" and len(bare) >= LEAST_PADDED
        is_of_state = self.is_sure and _KNOWN.issuperset(_without_moments(self.content()))
        return int(bare) if is_counter or is_of_state else None


def _is_glued_moment(before: str, low: str) -> re.Match[str] | None:
    """Match `v400` after the word of an optimizer; `optim_v4` is a version."""
    match = re.fullmatch(r"(m|v)(\d+)", low)
    is_version = match and before.startswith("opt") and len(match[2]) < LEAST_PADDED
    return None if is_version else match


def _without_moments(words: Sequence[str]) -> list[str]:
    """Return the words without the letters of averages that follow the word of an optimizer."""
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
    """Split into words and numbers.

    `epoch3` and `model000300` become two pieces, marked as glued; `resnet50` stays a single piece.
    """
    pieces = list[tuple[str, bool]]()
    for text in _PIECES.split(stem):
        if text.isalpha() or text.isdigit():
            pieces.append((text, False))
        elif match := _FRACTION.fullmatch(text):
            pieces.append((text if match[1] in ("v", "V", "") else match[1], False))
        elif _VERSION.fullmatch(text) or _ROUGH.fullmatch(text):
            pieces.append((text, False))
        else:
            for piece in filter(None, text.split(".")):
                pieces += _unglued(piece)
    return pieces


def _unglued(piece: str) -> list[tuple[str, bool]]:
    rows = _GLUED.findall(piece)  # epoch0epochstep4globalstep500
    is_all = len(rows) > 1 and "".join(map("".join, rows)) == piece
    if is_all and all(word.lower() in _STEP_WORDS for word, _ in rows):
        return [part for word, number in rows for part in ((word, False), (number, True))]
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
    parts = parts_of(name)
    if is_packed and parts.kin[0] is None:
        return False
    if any(word in _STATE_WORDS for word in parts.words):
        return True
    return not parts.words and (
        parts.is_told or any(selector in SELECTORS for selector in parts.key)
    )


def _without_ending(name: str) -> bool:
    """Return True for names without one of the endings of states: `checkpoint_100` (Flax),
    `neat-checkpoint-12` (NEAT), `model.txt.snapshot_iter_50` (LightGBM), `0003.model` (XGBoost) and
    `g_00005000` (HiFi-GAN)."""
    if not name[-1:].isdigit():
        return re.fullmatch(r"\d{4,9}\.model", name) is not None
    if re.fullmatch(r"(?:[A-Za-z]+[_-])?checkpoint[_-]\d+|.+\.snapshot_iter_\d+", name):
        return True
    if not re.fullmatch(r"[a-z_]+_\d{6,}", name):
        return False
    parts = parts_of(name)
    return parts.step is not None and parts.is_component


def may_be_state(name: str) -> bool:
    """Return True if files with the ending may be a training's state."""
    return name.lower().endswith((*_ALWAYS, *_PERHAPS))


def has_data(name: str) -> bool:
    """Return True for any file but a text, a log, a picture or a hidden file."""
    base = name.rpartition("/")[2]
    is_log = ".tfevents." in base or base.rpartition(".")[2].lower() in NO_STATE
    return not base.startswith(".") and not is_log


def are_parts(names: Collection[str]) -> set[str]:
    """Return the files written by each save.

    Where no name marks a file of a state, all files with data count, except the chunks of Zarr
    arrays: a missing chunk means zeros.
    """
    parts = set(filter(is_part, names))
    if any(is_state(name.rpartition("/")[2]) for name in names):
        return parts
    arrays = tuple(name.rpartition("/")[0] + "/" for name in names if name.endswith(_ARRAYS))
    return parts | {name for name in names if has_data(name) and not name.startswith(arrays)}


_ARRAYS = ("/.zarray", "/zarr.json")


def is_part(name: str) -> bool:
    """Return True if every save writes a file of the name: state, or a description of state."""
    base = name.rpartition("/")[2]
    is_of_zarr = base in (".zarray", "zarr.json")
    return (
        is_state(base)
        or base.lower().endswith(DESCRIPTIONS)
        or is_of_zarr
        or is_marker(base)
        or is_moment(base)
        or _HIDDEN_MARK.fullmatch(base) is not None
    )


# A hidden index or marker of a format, as TorchSnapshot's `.snapshot_metadata`.
_HIDDEN_MARK = re.compile(r"\.\w*(?:metadata|manifest|index|commit|marker)\w*(?:\.json)?")


def is_moment(name: str) -> bool:
    return name.lower().endswith(_PERHAPS) and parts_of(name).is_moment


def is_called_checkpoint(name: str) -> bool:
    """Return True if a folder is called like a single checkpoint without a step.

    Examples: `best`, `last_checkpoint`, `CKPT+2026-11-25+12-30-00`.  A folder `checkpoint` may
    contain several checkpoints.
    """
    parts = parts_of(name)
    words = {word for word in parts.words if word not in _CHECKPOINTS}
    is_dated = any(map(_DATE.fullmatch, parts.key)) and name.lower().startswith(_CHECKPOINTS)
    is_selected = bool(parts.key) and SELECTORS.issuperset(parts.key) and not parts.bare
    is_plain = parts.step is None and not parts.rank and not parts.ending
    return is_plain and words <= {"model", "weights", "state"} and (is_dated or is_selected)


# Words that may also name the folders of two trainings, or of anything.
_NO_PARTS = {"a", "b", "d", "g", "do", "train", "trainer", "training", "config", "args", "meta"}
_CONTAINERS = {"checkpoints", "ckpts", "snapshots", "gen", "disc", "enc", "dec", "opts"}
_OF_A_RANK = re.compile(r"(?:rank|mp|tp|pp|dp|shard|proc|process|gpu|device|partition)\d+")


def is_part_of_a_training(name: str) -> bool:
    """Return True if a folder is called by a part of a state (`weights`, `optim`), or by a rank.

    Other folders beside may have the other parts of a save.
    """
    parts = parts_of(name)
    if parts.step is not None or parts.bare or parts.key or parts.ending:
        return False
    is_rank = all(map(_OF_A_RANK.fullmatch, parts.rank.split()))
    words = (_STATE_WORDS | _CONTAINERS) - _NO_PARTS
    content = [word for word in parts.words if word != "training"]  # `training_states`
    return is_rank and bool(content or parts.rank) and words.issuperset(content)


def is_run(name: str) -> bool:
    """Return True if a folder's name shows a run or a version: `run1`, `seed_0`."""
    return not (_NO_STEP | {"fold", "folds"}).isdisjoint(re.findall(r"[a-z]+", name.lower()))


def step_of_folder(name: str) -> int | None:
    """Return the step in a folder's name: the number after a step word, or a name of digits."""
    parts = parts_of(name)
    if parts.step is None or not (parts.is_told or name.isdigit()):
        return None
    return parts.step


_THOUSANDS = re.compile(r"([1-9]\d{0,8})k")


def number_of_folder(name: str) -> int | None:
    """Return the only number in a folder's name, if a word of any language is beside the number,
    `Schritt_400`, or thousands are counted: `400k`.

    None for a name with a step word, and for the name of a run, a size, a version, a rank or a part
    of a state.
    """
    if match := _THOUSANDS.fullmatch(name):
        return int(match[1]) * 1000
    parts = parts_of(name)
    numbers = re.findall(r"\d+", name)
    is_plain = not (parts.key or parts.rank or parts.ending or parts.is_told or name.isdigit())
    words = set(re.findall(r"[^\W\d_]+", name.lower()))
    is_other = bool(words & (_NO_COUNT | _RANK_WORDS | {"folds"})) or words <= _STATE_WORDS
    if not is_plain or is_other or len(numbers) != 1 or len(numbers[0]) > MOST_DIGITS:
        return None
    is_last = re.fullmatch(r"[^\W\d]+[-_. =]\d+", name) is not None
    return int(numbers[0]) if is_last and len(words) == 1 else None
