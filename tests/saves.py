"""Small checkpoints on two tiers: write a state, drain, list."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from penstock.save.drain.drainer import Drainer
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings


def safetensors(value: float) -> bytes:
    """Return a safetensors file of 50 equal numbers."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [50], "data_offsets": [0, 200]}})
    return struct.pack("<Q", len(head)) + head.encode() + struct.pack("<f", value) * 50


def state(path: Path, value: float, *, at_s: float | None = None) -> None:
    """Write a state; at_s: the time of writing, None: now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors(value))
    if at_s is not None:
        os.utime(path, ns=(round(1e9 * at_s), round(1e9 * at_s)))


def value_of(path: Path) -> float:
    """Return the value that state() has written."""
    return float(struct.unpack("<f", path.read_bytes()[-4:])[0])


def drained(fast: Path, slow: Path, keep: Keep | None = None, **settings: Any) -> list[str]:
    """Drain once; return the checkpoints that were not copied, with the reason."""
    fast.mkdir(exist_ok=True)
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, keep=keep, **settings)) as working:
        return working.once()
