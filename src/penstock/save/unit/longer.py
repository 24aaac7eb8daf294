"""Join files if the whole name of a file is a prefix of the other names: gensim's `w2v_3.model` and
`w2v_3.model.wv.vectors.npy`, nnU-Net's `model_latest.model` and `model_latest.model.pkl`.

The module knows names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from penstock.save.unit.names import has_data, is_state, parts_of
from penstock.save.unit.units import BY_RULE, Unit

__all__ = ["LONGER", "with_longer_names"]

# Endings of the longer name; `model.pt.gz` is the same file once more.
LONGER = (".npy", ".npz", ".pkl", ".pickle", ".joblib", ".bin", ".h5")
WHY = "files whose names begin alike"


def with_longer_names(units: Sequence[Unit], names: Iterable[str]) -> list[Unit]:
    """Return the units of a folder, with the units of files with a common prefix joined.  names: of
    the files in the folder."""
    groups = _groups_in(set(names))
    of_rule = {name for unit in units if unit.why.startswith(BY_RULE) for name in unit.files}
    made = list(units)
    for base, files in groups.items():
        if _is_one(base, files) and of_rule.isdisjoint(files):
            own = [unit for unit in made if not files.isdisjoint(unit.files)]
            made = [*(unit for unit in made if unit not in own), _joined(base, files, own)]
    return made


def _groups_in(there: set[str]) -> dict[str, set[str]]:
    """Return each shorter name together with the longer names, by the shorter name."""
    groups = defaultdict[str, set[str]](set)
    for name in there:
        if name.lower().endswith(LONGER):
            base = _base_of(name, there)
            groups[base or ".".join(name.split(".")[:2])] |= {base, name} - {""}
    return groups


def _is_one(base: str, files: set[str]) -> bool:
    """Return True for several files with the base or a state among the files: a killed save may not
    have written the base yet."""
    return len(files) > 1 and (base in files or any(map(is_state, files)))


def _joined(base: str, files: set[str], own: Sequence[Unit]) -> Unit:
    """Return a unit of the files and of the units with some of the files."""
    lead = base if base in files else min(files, key=lambda name: (len(parts_of(name).key), name))
    step = next((unit.step for unit in own if unit.step is not None), parts_of(lead).step)
    inner = files.union(*(unit.files for unit in own))
    lost = tuple(dict.fromkeys(name for unit in own for name in unit.missing))
    return Unit(lead, tuple(sorted(inner)), step, WHY, lost)


def _base_of(name: str, there: set[str]) -> str:
    """Return the shortest name of another file that is a prefix of a name; empty: none."""
    pieces = name.split(".")
    for n in range(2, len(pieces)):
        base = ".".join(pieces[:n])
        if base in there and has_data(base):
            return base
    return ""
