"""Join files whose names begin with the whole name of another: gensim's `w2v_3.model` and
`w2v_3.model.wv.vectors.npy`, nnU-Net's `model_latest.model` and `model_latest.model.pkl`.

The module knows names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from penstock.save.names import has_data, is_state, parts_of
from penstock.save.units import BY_RULE, Unit

__all__ = ["LONGER", "with_longer_names"]

# Endings of the longer name; `model.pt.gz` is the same file once more.
LONGER = (".npy", ".npz", ".pkl", ".pickle", ".joblib", ".bin", ".h5")
WHY = "files whose names begin alike"


def with_longer_names(units: Sequence[Unit], names: Iterable[str]) -> list[Unit]:
    """Return the units of a folder, with the units of such files made one.  names: of the files in
    the folder."""
    there = set(names)
    groups = defaultdict[str, set[str]](set)
    for name in there:
        if name.lower().endswith(LONGER):
            base = _base_of(name, there)
            groups[base or ".".join(name.split(".")[:2])] |= {base, name} - {""}
    of_rule = {name for one in units if one.why.startswith(BY_RULE) for name in one.files}
    made = list(units)
    for base, files in groups.items():
        # Without the base, which a killed save may not have written yet, only states count.
        is_group = base in files or any(map(is_state, files))
        if len(files) < 2 or not is_group or not of_rule.isdisjoint(files):
            continue
        lead = base if base in files else min(files, key=lambda one: (len(parts_of(one).key), one))
        own = [one for one in made if not files.isdisjoint(one.files)]
        step = next((one.step for one in own if one.step is not None), parts_of(lead).step)
        files.update(name for one in own for name in one.files)
        lost = tuple(dict.fromkeys(name for one in own for name in one.missing))
        made = [one for one in made if one not in own]
        made.append(Unit(lead, tuple(sorted(files)), step, WHY, lost))
    return made


def _base_of(name: str, there: set[str]) -> str:
    """Return the shortest name of another file with which this name begins; empty: none."""
    pieces = name.split(".")
    for n in range(2, len(pieces)):
        base = ".".join(pieces[:n])
        if base in there and has_data(base):
            return base
    return ""
