"""Where Penstock is installed.  Knows the package's folder and the native parts in the folder;
loads no native part."""

import os

__all__ = ["FOLDER", "native_part"]

# `import penstock` imports installed.py, and pathlib is slow to import.
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def native_part(name: str) -> str:
    """Return the path of a native library or program, such as librec.so, built or not."""
    return os.path.join(FOLDER, name)  # noqa: PTH118
