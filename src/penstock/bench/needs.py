"""What studies need of others, looked for before anything is asked or written.

Knows names and what brings them; knows no study.  A module is imported in a program of its own, as
the studies' programs do: what is there and broken is found too, and no framework's memory stays in
the process that measures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from penstock.bench.places import OUR_PATH
from penstock.errors import MissingDependency

__all__ = ["look_for"]

_MODULES = {
    "torch": "PyTorch: pip install torch",
    "tensorflow": "TensorFlow: pip install tensorflow-cpu",
    "PIL.Image": "Pillow: pip install 'penstock[bench]'",
    "lmdb": "py-lmdb: pip install 'penstock[bench]'",
    "mpi4py": "mpi4py: pip install 'penstock[mpi]'",
}
_PROGRAMS = {"fio": "fio: apt install fio", "mpirun": "mpirun: apt install openmpi-bin"}


def look_for(needs: Mapping[str, str]) -> None:
    """needs: of each module or program what needs it, as an option if leaving that out helps.

    Raises MissingDependency: one is not there, or cannot be imported.
    """
    for name, what in needs.items():
        if name not in _MODULES and not shutil.which(name):
            cure = _PROGRAMS.get(name, f"{name}, and there is no such program")
            raise MissingDependency(f"{what} needs {cure}")
    modules = [name for name in needs if name in _MODULES]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", f"import {name}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ | OUR_PATH | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for name in modules
    ]  # fmt: skip
    try:
        said = [program.communicate()[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    for name, program, lines in zip(modules, programs, said, strict=True):
        if program.returncode:
            why = (lines.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            is_away = why == f"ModuleNotFoundError: No module named '{name.partition('.')[0]}'"
            more = "" if is_away else f" (import {name}: {why})"
            raise MissingDependency(f"{needs[name]} needs {_MODULES[name]}{more}")
