"""Recognise folders that are checkpoints, by a framework's files or by the step in the name.

The module knows names, and reads the files in which a framework names the last checkpoint.
penstock.save.verify checks that the bytes are whole.  Recognisers are ordered from strong to weak;
the first match decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import TierError
from penstock.save.manifest import BESIDE
from penstock.save.unit.names import (
    DESCRIPTIONS,
    SELECTORS,
    has_data,
    is_called_checkpoint,
    is_state,
    number_of_folder,
    parts_of,
    step_of_folder,
)
from penstock.save.unit.progress import of_two_saves
from penstock.save.unit.units import lost_shards

if TYPE_CHECKING:
    from penstock.places.stores import StoredFile
    from penstock.save.checkpoint import Checkpoint
    from penstock.save.find.tree import Folder, StoreTree

__all__ = ["FOLDERS", "HF_FOLDER", "HF_STATE", "is_config", "parts_of_trainer", "without_weak"]

HF_STATE = "trainer_state.json"
_DCP, _ORBAX = ".metadata", "_CHECKPOINT_METADATA"
HF_FOLDER = re.compile(r"checkpoint-\d+")
_HF_SIGNS = {HF_STATE, "training_args.bin"}  # files that only a Trainer writes
_HF_PARTS = {
    *_HF_SIGNS, "optimizer.pt", "scheduler.pt", "optimizer.bin", "scaler.pt", "optimizer_#",
    "pytorch_model_fsdp_#", "global_step#",
}  # fmt: skip
_HF_CONFIGS = ("config.json", "adapter_config.json")
_DIFFUSERS = "model_index.json"
_DIFFUSERS_PARTS = {
    "unet", "vae", "transformer", "text_encoder", "scheduler", "tokenizer", "feature_extractor",
}  # fmt: skip
_SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")
_MEGATRON = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_\d+)?")  # also in rankfiles
_MEGATRON_LAST, _DEEPSPEED_LAST = "latest_checkpointed_iteration.txt", "latest"
# A folder with a number as name is the run of a sweep if the parent folder has a name listed here,
_RUNS = re.compile(
    r"(?:multirun|sweep|run|job|trial|seed|fold|exp|experiment|rank|worker|member|agent|expert|node"
    r"|version)s?|\d{4}-\d{2}-\d{2}|\d{2}-\d{2}-\d{2}|mlruns", re.IGNORECASE,
)  # fmt: skip
# or if the folder contains a mark listed here.
_RUN_MARKS = {".hydra", "wandb", "mlruns", "lightning_logs", "hparams.yaml", "meta.yaml"}
_ZARR = {".zarray", ".zgroup", "zarr.json"}
_RANDOM = re.compile(r"random_states_\d+\.pkl")
_ACCELERATE = {"optimizer.bin", "scheduler.bin"}
_ACCELERATE_FIRST = re.compile(
    r"(?:model|pytorch_model|optimizer|scheduler|sampler|dl_state_dict|scaler)(?:_\d+)?"
    r"(?:-\d+-of-\d+)?\.(?:safetensors|bin|pt)"
)
_LIGHTNING, _LIGHTNING_META = re.compile(r"epoch=\d+-step=\d+"), "meta.pt"
_ITERATION, _MEGATRON_BESIDE = re.compile(r"iter_\d{7}"), {"common.pt", "metadata.json"}
_NEMO_CONTEXT = "io.json"
MOST_LINE_BYTES, MOST_RANKS = 4 << 10, 1 << 20


def _dcp(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    has_data = any(base.endswith(".distcp") for base in here.files)
    if not has_data and _DCP not in here.files:
        return None
    if _DCP in here.files and not has_data and not _looks_like_dcp(here):
        return None
    files = tree.all_files(name)
    problem = "no .metadata: the save did not end"
    if _DCP in here.files:
        problem = of_two_saves(files, [f"{name}/{_DCP}"], r".*\.distcp")
        problem = problem or _is_not_the_last(tree, name, files)
        problem = problem or _lost_beside_dcp(tree, name, here)
    return tree.checkpoint(name, "dcp", files, problem, "DCP's .metadata and data files")


def _lost_beside_dcp(tree: StoreTree, name: str, here: Folder) -> str:
    """Name a missing file that Lightning or Megatron writes beside DCP's files.  Returns an empty
    string if no file is missing."""
    above, _, last = name.rpartition("/")
    if _LIGHTNING.match(last) and last.endswith(".ckpt") and _LIGHTNING_META not in here.files:
        return f"no {_LIGHTNING_META}, which Lightning writes"
    # Megatron loads no folder without the two files (dist_checkpointing.serialization.load).
    is_megatron = _MEGATRON_LAST in tree.folders[above].files or _ITERATION.fullmatch(last)
    if is_megatron and not _MEGATRON_BESIDE.isdisjoint(here.files):
        for base in sorted(_MEGATRON_BESIDE - here.files.keys()):
            return f"no {base}, which Megatron writes beside the data files"
    return ""


def _looks_like_dcp(here: Folder) -> bool:
    return any(name.startswith("__") for name in here.files) or len(here.files) == 1


def _orbax(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    if _ORBAX in here.files or "_METADATA" in here.files or "manifest.ocdbt" in here.files:
        return tree.checkpoint(name, "orbax", tree.all_files(name), "", "Orbax' metadata")
    last = name.rsplit("/", 1)[-1]
    has_item = _has_item_of_orbax(tree, name, here)
    if ".orbax-checkpoint-tmp" in last or has_item:
        problem = "" if has_item and ".orbax" not in last else "Orbax has not ended it"
        return tree.checkpoint(name, "orbax", tree.all_files(name), problem, "Orbax' metadata")
    return None


def _has_item_of_orbax(tree: StoreTree, name: str, here: Folder) -> bool:
    """Return True for a step with the item `default`, or with items without a step in the name.
    The metadata of the step may be absent: older versions write no metadata of a step."""
    items = [
        folder for folder in here.folders if "_METADATA" in tree.folders[f"{name}/{folder}"].files
    ]
    is_step = step_of_folder(name.rsplit("/", 1)[-1]) is not None
    return "default" in items or (
        is_step and bool(items) and all(step_of_folder(item) is None for item in items)
    )


def _hf(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    has_weights = any(base.endswith((".safetensors", ".bin")) for base in here.files)
    has_config = any(map(is_config, here.files))
    above, _, last = name.rpartition("/")
    is_beside_one = HF_FOLDER.fullmatch(last) is not None and any(
        HF_STATE in parts for parts in tree.trainers(above).values()
    )
    if HF_STATE not in here.files and not (has_weights and has_config) and not is_beside_one:
        return None
    files = tree.all_files(name, tree.is_hf)
    problem = _unlike_its_neighbours(tree, name) or _of_shards(name, here, files)
    why = HF_STATE if HF_STATE in here.files else "a Hugging Face configuration and weights"
    return tree.checkpoint(name, "hf", files, problem, why)


def _of_shards(name: str, here: Folder, files: Sequence[StoredFile]) -> str:
    """Check a model's shards by names and times.  Returns the problem, or an empty string."""
    if lost := lost_shards(here.files):
        return f"is missing: {', '.join(lost)}"
    return of_two_saves(files, [f"{name}/{base}" for base in here.files if is_config(base)])


def is_config(name: str) -> bool:
    return name in _HF_CONFIGS or name.endswith((".safetensors.index.json", ".bin.index.json"))


def _unlike_its_neighbours(tree: StoreTree, name: str) -> str:
    """Name the parts that a Trainer's checkpoint lacks; empty if no part is missing.  The Trainer
    writes the state file last, and all checkpoints of a run have equal parts."""
    above, _, last = name.rpartition("/")
    if not HF_FOLDER.fullmatch(last):
        return ""
    run = tree.trainers(above)
    own = run[last]
    # Several folders without any part of the Trainer belong to another program.  A single folder
    # with an optimizer and without the arguments belongs to another program too: the Trainer writes
    # the arguments before the optimizer.
    is_other = len(run) == 1 and "training_args.bin" not in own and own & _HF_PARTS
    is_trainer_s = any(_HF_SIGNS & signs for signs in run.values()) or (
        len(run) == 1 and not is_other
    )
    if HF_STATE not in own and is_trainer_s:
        return f"no {HF_STATE}: the Trainer has not ended it"
    for part in sorted(set().union(*run.values()) - own):
        neighbour = max(
            (folder for folder in run if part in run[folder]),
            key=lambda folder: (len(folder), folder),
        )
        return f"no {part.replace('#', '0')}, which {neighbour} beside it has"
    return ""


def parts_of_trainer(here: Folder) -> set[str]:
    """Return the parts of a folder from which a training can resume, with numbers as #."""
    names = {re.sub(r"\d+", "#", name) for name in (*here.files, *here.folders)}
    return names & _HF_PARTS


_OF_RANKS = re.compile(r"(?:(?:bf16_|fp16_)?zero_pp_rank_\d+_)?mp_rank_\d+_.*\.pt")
_OF_LAYERS = re.compile(r"layer_(\d+)-model_\d+-model_states\.pt")


def _deepspeed(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    has_ranks = any(map(_OF_RANKS.fullmatch, here.files))
    if not has_ranks and not any(map(_OF_LAYERS.fullmatch, here.files)):
        return None
    files = tree.all_files(name)
    problem = "" if has_ranks else "no mp_rank_00_model_states.pt: the save did not end"
    problem = problem or _lost_layer(tree, name, here) or _is_not_the_last(tree, name, files)
    return tree.checkpoint(name, "deepspeed", files, problem, "DeepSpeed's ranks")


def _lost_layer(tree: StoreTree, name: str, here: Folder) -> str:
    """Name a layer of a pipeline missing in a checkpoint and present in every checkpoint beside.
    Returns an empty string if no layer is missing."""
    above, _, last = name.rpartition("/")
    layers = _layers_of(here)
    start = f"{above}/" if above else ""
    beside = {
        folder: other_layers for folder in tree.folders[above].folders
        if folder != last and (other_layers := _layers_of(tree.folders[f"{start}{folder}"]))
    }  # fmt: skip
    if not layers or not beside:
        return ""
    lost = sorted(frozenset.intersection(*beside.values()) - layers)
    like = next((base for base in here.files if _OF_LAYERS.fullmatch(base)), "")
    if not lost:
        return ""
    return f"no {re.sub('[0-9]+', lost[0], like, count=1)}, which {max(beside)} beside it has"


def _layers_of(here: Folder) -> frozenset[str]:
    return frozenset(match[1] for name in here.files if (match := _OF_LAYERS.fullmatch(name)))


def _saved_model(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    has_graph = any(file_name in here.files for file_name in _SAVED_MODEL)
    has_variables = False
    if "variables" in here.folders:
        inner = tree.folders[f"{name}/variables"]
        has_variables = any(base.startswith("variables.") for base in inner.files)
        has_variables = has_variables or "variables_temp" in inner.folders  # being written
    if not has_graph and not has_variables:
        return None
    problem = "" if has_graph else f"no {_SAVED_MODEL[0]}: the save did not end"
    why = "TensorFlow's saved_model.pb and its variables"
    return tree.checkpoint(name, "savedmodel", tree.all_files(name), problem, why)


def _diffusers(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    """Recognise a pipeline of several models.  The index is written last."""
    has_index = _DIFFUSERS in here.files
    if not has_index and len(_DIFFUSERS_PARTS & here.folders) < 2:
        return None
    if not has_index and any(map(is_state, here.files)):
        return None  # a training's own folder, with an optimizer beside the parts
    problem = "" if has_index else f"no {_DIFFUSERS}: the save did not end"
    why = f"a pipeline: {_DIFFUSERS} and its parts"
    return tree.checkpoint(name, "diffusers", tree.all_files(name), problem, why)


def _megatron(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    ranks = [match for folder in here.folders if (match := _MEGATRON.fullmatch(folder))]
    if not ranks:
        return None
    there = {(int(match[1]), int(match[2] or 0)) for match in ranks}
    tensors, stages = (max(pair[side] for pair in there) + 1 for side in (0, 1))
    n_lost = tensors * stages - len(there) if tensors * stages <= MOST_RANKS else 0
    problem = f"{n_lost} of {tensors * stages} folders mp_rank_* are missing" if n_lost else ""
    files = tree.all_files(name)
    problem = problem or _is_not_the_last(tree, name, files)
    return tree.checkpoint(name, "megatron", files, problem, "Megatron's ranks")


def _is_not_the_last(tree: StoreTree, name: str, files: Sequence[StoredFile]) -> str:
    """Report a checkpoint that the framework has not finished.

    Megatron, verl and DeepSpeed update a pointer file at the end of a save: a checkpoint newer than
    the pointer, and with a later step than the pointer names, is not finished.  With two newer
    checkpoints the program does not update the pointer, and nothing is reported."""
    above, _, last = name.rpartition("/")
    beside = tree.folders[above]
    pointer = beside.files.get(_MEGATRON_LAST) or beside.files.get(_DEEPSPEED_LAST)
    step = step_of_folder(last)
    if pointer is None or step is None:
        return ""
    written_ns = pointer.mtime_ns or 0
    if max((file.mtime_ns or 0 for file in files), default=0) <= written_ns:
        return ""
    named: int | None = None
    with suppress(TierError, ValueError):
        text = tree.store.read(pointer.name, 0, MOST_LINE_BYTES).decode().strip()
        named = step_of_folder(text)
    if named is None or named >= step:
        return ""
    start = f"{above}/" if above else ""
    for folder in beside.folders:
        other = step_of_folder(folder) if folder != last else None
        if other is not None and other > named:
            newest_ns = max(
                (f.mtime_ns or 0 for f in tree.all_files(f"{start}{folder}")), default=0
            )
            if newest_ns > written_ns:
                return ""
    return f"{pointer.name.rpartition('/')[2]} names {text}: the save did not end"


def _accelerate(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    has_random = any(map(_RANDOM.fullmatch, here.files))
    has_state = not _ACCELERATE.isdisjoint(here.files) and any(
        base.startswith(("model", "pytorch_model")) for base in here.files
    )
    if not has_random and not has_state and not _is_like_one_beside(tree, name, here):
        return None
    problem = "" if has_random else "no random_states_0.pkl: Accelerate has not ended it"
    why = "the files of Accelerate's save_state"
    return tree.checkpoint(name, "accelerate", tree.all_files(name), problem, why)


def _is_like_one_beside(tree: StoreTree, name: str, here: Folder) -> bool:
    """Return True for a folder with the first files of a save_state.  The name of a complete folder
    beside must be equal except for the step: `lora-000004-state`, `lora-000003-state`."""
    above, _, last = name.rpartition("/")
    if parts_of(last).step is None or not any(map(_ACCELERATE_FIRST.fullmatch, here.files)):
        return False
    if above not in tree.accelerated:
        start = f"{above}/" if above else ""
        tree.accelerated[above] = {
            _without_digits(folder) for folder in tree.folders[above].folders
            if any(map(_RANDOM.fullmatch, tree.folders[f"{start}{folder}"].files))
        }  # fmt: skip
    return _without_digits(last) in tree.accelerated[above]


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _nemo(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    if not {"weights", "context"} <= here.folders:
        return None
    why = "NeMo's weights and context"
    weights, problem = tree.folders[f"{name}/weights"].files, ""
    if _DCP in weights:
        lost = sorted(_MEGATRON_BESIDE - weights.keys())
        problem = f"no weights/{lost[0]}" if len(lost) == 1 else ""
    if _NEMO_CONTEXT not in tree.folders[f"{name}/context"].files:
        problem = problem or f"no context/{_NEMO_CONTEXT}"
    return tree.checkpoint(name, "nemo", tree.all_files(name), problem, why)


def _stepped(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    """Recognise a folder with a step in the name, with any kind of files.

    A folder of several checkpoints, as of an epoch or of a numbered run, is not recognised.  A
    folder without a file of a state is not recognised if the name is only a number, or if all files
    are texts and pictures."""
    last = name.rsplit("/", 1)[-1]
    step = step_of_folder(last)
    if step is None:
        return None
    files = tree.all_files(name)
    state = [file for file in files if _is_state(file.name)]
    is_weak = not state
    if is_weak and parts_of(last).is_told and _DRAFTS.isdisjoint(parts_of(last).words):
        state = [file for file in files if has_data(file.name)]
    if not state or any(file.name.endswith(BESIDE) for file in files):
        return None
    if last.isdigit() and _is_run(tree, name, here):
        return None
    if _are_several(last, step, [state_file.name[len(name) + 1 :] for state_file in state]):
        return None
    why = f"a folder whose name tells step {step}{_OF_UNKNOWN_KINDS if is_weak else ''}"
    problem = _of_shards(name, here, files) or _is_not_the_last(tree, name, files)
    return tree.checkpoint(name, "folder", files, problem, why)


def _are_several(folder: str, step: int, names: Sequence[str]) -> bool:
    """Return True if the names in a folder count the steps of several checkpoints."""
    inner = dict[int, str]()
    for part in (part for name in names for part in name.split("/")):
        parts = parts_of(part)
        if parts.is_told and parts.step is not None and parts.step != step:
            inner[parts.step] = part
    is_finer = folder.isdigit() or _is_finer(folder, *list(inner.values())[:1])
    return len(inner) > 1 or (len(inner) == 1 and is_finer)


_DRAFTS = {"tmp", "temp"}  # folders that a framework renames: `ckpt-2_temp`, `tmp-checkpoint-5`
_OF_UNKNOWN_KINDS = ", with files of unknown kinds"


def without_weak(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints.  Folders of unknown files are excluded if another checkpoint has both
    a state and a step: the folders may be results of an evaluation."""
    weak = [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.manifest is None and checkpoint.why.endswith(_OF_UNKNOWN_KINDS)
    ]
    has_strong = weak and any(
        checkpoint.step is not None and any(_is_state(file.name) for file in checkpoint.files)
        for checkpoint in checkpoints
    )
    dropped = {id(checkpoint) for checkpoint in weak} if has_strong else set()
    return [checkpoint for checkpoint in checkpoints if id(checkpoint) not in dropped]


def _is_state(name: str) -> bool:
    base = name.rpartition("/")[2]
    return is_state(base) or base in _ZARR


def _named(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    """Recognise a folder named like a single checkpoint (`best`), with a state and without a step
    in the names inside."""
    if not is_called_checkpoint(name.rsplit("/", 1)[-1]):
        return None
    files = tree.all_files(name)
    has_state = any(is_state(base) for base in here.files)
    # spaCy's `model-last`: no file has a name of a known kind.
    is_weak = not has_state and bool(parts_of(name.rsplit("/", 1)[-1]).words)
    if is_weak and (len(list(filter(has_data, (file.name for file in files)))) < 2):
        return None
    if not (has_state or is_weak) or any(file.name.endswith(BESIDE) for file in files):
        return None
    for file in files:
        for part in file.name[len(name) + 1 :].split("/"):
            parts = parts_of(part)
            if (parts.step is not None or parts.bare) and parts.shard is None:
                return None
    why = f"a folder with the name of one checkpoint{_OF_UNKNOWN_KINDS if is_weak else ''}"
    return tree.checkpoint(name, "folder", files, _of_shards(name, here, files), why)


def _numbered(tree: StoreTree, name: str, here: Folder) -> Checkpoint | None:
    """Recognise a folder with a number and any word in the name (`Schritt_400`), and with files of
    a state.  The files have no step, no number and no word like `best` in the name.  A folder with
    logs or marks of a run is the folder of a run, and may hold several checkpoints."""
    last = name.rsplit("/", 1)[-1]
    step = number_of_folder(last)
    if step is None or _is_run(tree, name, here):
        return None
    files = tree.all_files(name)
    # `400k/generator/weights.pth`: in `Schritt_400/` the folders may be anything.
    own = (file.name.rpartition("/")[2] for file in files) if last.endswith("k") else here.files
    if not any(map(is_state, own)):
        return None
    for file in files:
        base = file.name.rpartition("/")[2]
        parts = parts_of(base)
        is_log = not has_data(base) and not base.lower().endswith(DESCRIPTIONS)
        has_count = (parts.step is not None or bool(parts.bare)) and parts.shard is None
        has_selector = not SELECTORS.isdisjoint(parts.key)
        if is_log or base.endswith(BESIDE) or (is_state(base) and (has_count or has_selector)):
            return None
    why = f"a folder whose name has the number {step}"
    made = tree.checkpoint(name, "folder", files, _of_shards(name, here, files), why)
    return replace(made, step=step)


def _is_run(tree: StoreTree, name: str, here: Folder) -> bool:
    """Return True if a folder with a number as name belongs to several runs, as of a sweep."""
    above = name.rpartition("/")[0].rpartition("/")[2] or tree.store.url.rpartition("/")[2]
    is_marked = not _RUN_MARKS.isdisjoint(here.files.keys() | here.folders) or any(
        base.startswith("events.out.tfevents") for base in here.files
    )
    return is_marked or _RUNS.fullmatch(above) is not None


def _is_finer(folder: str, inner: str = "") -> bool:
    """Return True if the inner name counts steps and the folder counts epochs."""
    return "epoch" in folder.lower() and "epoch" not in inner.lower()


# The first recogniser that matches decides.
FOLDERS = (
    _dcp, _orbax, _saved_model, _diffusers, _hf, _deepspeed, _megatron, _accelerate, _nemo,
    _stepped, _named, _numbered,
)  # fmt: skip
