"""Where Penstock is installed.  Knows the package's folder and the native parts in the folder;
loads no native part."""

import os
from collections.abc import Mapping

__all__ = ["FOLDER", "native_part", "with_package"]

# `import penstock` imports installed.py, and pathlib is slow to import.
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def native_part(name: str) -> str:
    """Return the path of a native library or program, such as librec.so, built or not."""
    return os.path.join(FOLDER, name)  # noqa: PTH118


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for another Python, with the folder of the package in PYTHONPATH: the
    program may have found the package by a path of its own."""
    package = os.path.dirname(FOLDER)  # noqa: PTH120
    paths = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": paths}
