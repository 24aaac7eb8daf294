"""The needs of studies, looked for before any question or write.

Knows names and their packages; knows no study.  A module is looked for and not imported, as
TensorFlow's import takes 8 s: the user of a broken module reports the fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from penstock.errors import MissingDependency

__all__ = ["imported", "look_for"]

_MODULES = {
    "torch": "PyTorch: pip install torch",
    "tensorflow": "TensorFlow: pip install tensorflow-cpu",
    "PIL": "Pillow: pip install penstock-lab",
    "lmdb": "py-lmdb: pip install penstock-lab",
    "matplotlib": "matplotlib: pip install penstock-lab",
    "darshan": "PyDarshan: pip install 'penstock[darshan]'",
    "mpi4py": "mpi4py: pip install 'penstock[mpi]'",
}
_PROGRAMS = {"fio": "fio: apt install fio", "mpirun": "mpirun: apt install openmpi-bin"}


def look_for(needs: Mapping[str, str]) -> None:
    """Look for modules and programs.  needs: for each the work that needs it, as an option if
    omitting the option helps.

    Raises MissingDependency: a module or program is missing.
    """
    for name, what in needs.items():
        if name in _MODULES and not _is_module(name):
            raise MissingDependency(f"{what} needs {_MODULES[name]}")
        if name not in _MODULES and not shutil.which(name):
            cure = _PROGRAMS.get(name, f"{name}, and there is no such program")
            raise MissingDependency(f"{what} needs {cure}")


def _is_module(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # else a mere folder of the name


def imported(name: str, what: str) -> Any:
    """Return a module, for a named need.  Raises MissingDependency: missing, or broken."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # OSError: of a library loaded by the module
        package = name.partition(".")[0]
        is_away = isinstance(error, ModuleNotFoundError) and error.name == package
        more = "" if is_away else f" (import {name}: {error})"
        raise MissingDependency(f"{what} needs {_MODULES[package]}{more}") from error
