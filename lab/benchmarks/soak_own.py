"""Save and check a checkpoint of Penstock's own for the soaks, and look for leftovers in a tier.

The module knows no soak.
"""

import json
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from bars import scratch
from safetensors.numpy import load_file

from penstock.errors import PenstockError
from penstock.save.commit import STATE, begin, commit
from penstock.save.manifest import CHUNK_BYTES

__all__ = [
    "ENDED_WITHIN_S",
    "HEAD",
    "N_NUMBERS",
    "SIZE_BYTES",
    "await_end",
    "emptied",
    "is_what_was_saved",
    "kinds",
    "leftovers",
    "save",
]

# A safetensors file for a Checkpointer to restore: an array, full of the step's number.
N_NUMBERS = (2 * CHUNK_BYTES + 12_352) // 8
_TEXT = json.dumps(
    {"x": {"dtype": "F64", "shape": [N_NUMBERS], "data_offsets": [0, 8 * N_NUMBERS]}}
).encode()
HEAD = len(_TEXT).to_bytes(8, "little") + _TEXT
SIZE_BYTES = len(HEAD) + 8 * N_NUMBERS
ENDED_WITHIN_S = 90.0  # a writer or a drain after a kill of the training


def await_end(pid: int) -> None:
    """Wait for the end of a drain that outlives its program, and of the drain's threads, which
    share the drain's locks."""
    end_s = time.monotonic() + ENDED_WITHIN_S
    with suppress(OSError):  # the process has ended
        while (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            or len([*Path(f"/proc/{pid}/task").iterdir()]) > 1
        ):
            if time.monotonic() > end_s:
                raise SystemExit(f"process {pid}: alive {ENDED_WITHIN_S:.0f} s after its training")
            time.sleep(0.02)


def leftovers(tier: Path) -> list[Path]:
    """Return the remains of interrupted work: drafts, parts, and checkpoints half removed."""
    trash = [*(tier / STATE / "trash").glob("*")]
    return trash + [path for path in tier.rglob("*") if path.name.endswith(".part")]


def is_what_was_saved(path: Path, step: int) -> bool:
    """Return True if the format's own library reads the step in each number."""
    return bool((load_file(path / "state.safetensors")["x"] == step).all())


def save(tier: Path, step: int) -> Path:
    part = begin(tier, step)
    part.write("state.safetensors", [HEAD + np.full(N_NUMBERS, step, "<f8").tobytes()])
    # Written as by another program: without a sync.
    try:
        (part.path / "state.json").write_text("{}" + " " * 10_000)
    except OSError as error:
        raise PenstockError(f"{part.path}: the other program: {error}") from None
    return commit(part)


def emptied(name: str) -> Path:
    """Return an empty folder for a single soak: two soaks may run side by side."""
    folder = scratch("soak-save") / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def kinds(*every_kind: str) -> tuple[str, ...]:
    """Return the kinds named on the command line; without a name, all kinds."""
    wanted = [word for word in sys.argv[1:] if word in every_kind]
    return tuple(wanted) or every_kind
