"""Where this package is installed.  Knows its folder and the native parts in the folder; loads
none of them."""

import os

__all__ = ["FOLDER", "native_part"]

# `import penstock` imports this, and pathlib is slow to import.
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def native_part(name: str) -> str:
    """Return the path of a native library or program, such as librec.so, built or not."""
    return os.path.join(FOLDER, name)  # noqa: PTH118
