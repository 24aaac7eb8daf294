"""Check that no rank's file of a DeepSpeed or Megatron checkpoint is missing.

The numbers of the ranks are in the names, and in the model's files.  Files are read without
unpickling.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from penstock.places.stores import StoredFile
from penstock.save.check.foreign import Damage
from penstock.save.check.interior import by_folder, top_of
from penstock.save.check.pickles import PickledObject
from penstock.save.checkpoint import Checkpoint

__all__ = [
    "Optimizers",
    "check_megatron",
    "check_ranks",
    "has_uncounted",
    "is_of_model",
    "optimizers_of",
]

MOST_RANKS = 1_000_000
_ZERO = re.compile(r"(bf16_|fp16_|)zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_(\d+)_model_states\.pt")
_EXPERT_OPTIMIZER = re.compile(r"expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MEGATRON = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_\d+)?")
# Megatron-LM, megatron/training/arguments.py and checkpointing.py (get_checkpoint_name).
_SIZES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
)  # fmt: skip
_OPTIMIZER, _NO_OPTIMIZER = "use_distributed_optimizer", "no_save_optim"
_MEGATRON_MODEL, _MEGATRON_OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"


_OF_LAYER = re.compile(r"layer_\d+(?:-model_\d+-|_expert_\d+_mp_rank_\d+_)model_states\.pt")


def is_of_model(name: str) -> bool:
    """Return True if the name of a DeepSpeed file depends only on the model.

    Such a name does not depend on the number of data-parallel ranks.
    """
    return _OF_LAYER.fullmatch(name) is not None or _MODEL.fullmatch(name) is not None


class Optimizers(NamedTuple):
    """The files of a DeepSpeed optimizer.  of_experts: names; n_ranks: data-parallel ranks."""

    of_experts: frozenset[str]
    n_ranks: int


def optimizers_of(names: Iterable[str]) -> Optimizers:
    """Return the files of the optimizer among the names."""
    names = list(names)
    zero = [match for name in names if (match := _ZERO.fullmatch(name)) and match[4] == "optim"]
    ranks = {match[2] for match in zero}
    return Optimizers(frozenset(filter(_EXPERT_OPTIMIZER.fullmatch, names)), len(ranks))


def has_uncounted(names: Iterable[str]) -> bool:
    """Return True if there are files of layers or experts: no file states how many there are."""
    return any(map(_OF_LAYER.fullmatch, names))


def check_ranks(checkpoint: Checkpoint, folder: str, files: dict[str, StoredFile]) -> None:
    """Check that the file of each DeepSpeed rank and expert is there.

    The numbers come from the names and from the model's file.  Raises Damage.
    """
    layout = _told_ranks(checkpoint, files)
    if layout.has_parts and not any(name.endswith("optim_states.pt") for name in files):
        raise Damage(
            f"{folder}*_optim_states.pt: missing, and the model's file says there are some"
        )
    _check_experts(folder, files)
    zero = [(match, name) for name in files if (match := _ZERO.fullmatch(name))]
    if not zero:
        return
    ranks: dict[tuple[str, str], set[int]] = {}
    for match, _ in zero:
        ranks.setdefault((match[1], match[4]), set()).add(int(match[2]))
    models = {match[1] for name in files if (match := _MODEL.fullmatch(name))}
    models |= {match[3] for match, _ in zero if match[4] == "model"}
    width = len(zero[0][0][3])
    mp_ranks = sorted({int(match[3]) for match, _ in zero} | {int(model) for model in models})
    for mp_rank in range(mp_ranks[-1] + 1):
        mp_name = f"{mp_rank:0{width}d}"
        if mp_name not in models:
            raise Damage(f"{folder}mp_rank_{mp_name}_model_states.pt: is missing")
        for (start, kind), present in ranks.items():
            for rank in range(max(max(present) + 1, layout.n_ranks)):
                name = f"{start}zero_pp_rank_{rank}_mp_rank_{mp_name}_{kind}_states.pt"
                if name not in files:
                    n = max(max(present) + 1, layout.n_ranks)
                    raise Damage(f"{folder}{name}: is missing, of {n}")


def _check_experts(folder: str, files: Iterable[str]) -> None:
    """Check the rows of a mixture of experts: each row is numbered from 0 without a gap.

    The rows are layers, experts of a layer and rank, and ranks of the optimizer.  No file states
    the lengths of the rows.  Raises Damage.
    """
    rows: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for name in files:
        if match := _EXPERT.fullmatch(name):
            layer, expert, rank = match.groups()
            end = f"_mp_rank_{rank}_model_states.pt"
            rows[f"layer_{layer}_expert_", end].add(int(expert))
            rows["layer_", f"_expert_0{end}"].add(int(layer))
        elif match := _EXPERT_OPTIMIZER.fullmatch(name):
            rows["expp_rank_", f"_mp_rank_{match[2]}_optim_states.pt"].add(int(match[1]))
    for (start, end), numbers in sorted(rows.items()):
        lost = next((number for number in range(len(numbers)) if number not in numbers), None)
        if lost is not None:
            raise Damage(f"{folder}{start}{lost}{end}: is missing, of {max(numbers) + 1}")


class _Ranks(NamedTuple):
    """The numbers in a model's file.

    n_ranks: the number of ranks in the save; 0: not stated.  has_parts: the optimizer's state is in
    separate files, because only then the shapes of the parameters are stored.
    """

    n_ranks: int = 0
    has_parts: bool = False


def _told_ranks(checkpoint: Checkpoint, files: dict[str, StoredFile]) -> _Ranks:
    """Return the numbers stated in the model's file."""
    has_parts = False
    for name, file in sorted(files.items()):
        if name.endswith("_model_states.pt") and not _EXPERT.fullmatch(name):
            top = top_of(checkpoint, file)
            has_parts = has_parts or top.get("param_shapes") is not None
            number = top.get("dp_world_size")
            if isinstance(number, int):
                return _Ranks(number if 0 < number <= MOST_RANKS else 0, has_parts)
    return _Ranks(0, has_parts)


def check_megatron(checkpoint: Checkpoint) -> str:
    """Check the folders of Megatron's ranks.

    Each rank has the files of the other ranks, and the first rank's arguments state the number of
    ranks.  Return a remark where no number is stated.  Raises Damage.
    """
    ranks = {folder: files for folder, files in by_folder(checkpoint).items()
             if _MEGATRON.fullmatch(folder.rstrip("/"))}  # fmt: skip
    if not ranks:
        raise Damage("mp_rank_*: the ranks' folders are missing")
    everywhere = set[str]().union(*ranks.values())
    for folder, files in sorted(ranks.items()):
        for name in sorted(everywhere - files.keys()):
            raise Damage(f"{folder}{name}: is missing, and other ranks have the file")
    first = ranks[min(ranks)]
    model = first.get(_MEGATRON_MODEL) or next(iter(first.values()))
    arguments = top_of(checkpoint, model, (*_SIZES, _OPTIMIZER, _NO_OPTIMIZER)).get("args")
    fields = arguments.fields if isinstance(arguments, PickledObject) else {}
    has_optimizer = fields.get(_OPTIMIZER) is True and fields.get(_NO_OPTIMIZER) is not True
    if has_optimizer and _MEGATRON_OPTIMIZER not in everywhere:
        raise Damage(f"{_MEGATRON_OPTIMIZER}: is missing, and the model's arguments ask for one")
    sizes = [size for name in _SIZES if isinstance(size := fields.get(name), int) and size > 0]
    if not sizes:
        return f"{checkpoint.inner(model)}: does not state the number of ranks: names compared only"
    if len(ranks) < math.prod(sizes):
        raise Damage(f"{len(ranks)} of {math.prod(sizes)} folders mp_rank_*: the rest are missing")
    return ""
