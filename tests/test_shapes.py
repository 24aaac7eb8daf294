"""Hostile shapes below 1 MB, built for each reader: no shape takes more than 300 MB or 10 s."""

import pytest

from fixtures import THOROUGH
from fuzz.shapes import shapes_of, tried_apart
from fuzz.targets import TARGETS

# Packed traces have tests of their own in test_bounded.py; `python -m fuzz.shapes` tries all.
NAMES = (
    "log", "tables-of-a-log", "beside-run", "beside-classes", "judge-torch", "judge-npz",
    "judge-pickle", "judge-npy", "judge-safetensors", "judge-gguf", "judge-msgpack",
    "inert-pickle", "decoded-record", "checkpoint-tensorflow-index",
)  # fmt: skip
# A shape of these takes a second: the tables of a run are made of it.
OF_THE_ENGINE = ("beside-run", "tables-of-a-log")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_shape_takes_much_memory_or_time(name: str) -> None:
    found = []
    every = 1 if THOROUGH or name not in OF_THE_ENGINE else 4
    for title, data in list(shapes_of(name))[::every]:
        why, cpu_s, _ = tried_apart(TARGETS[name], data)
        if why:
            found.append(f"{title} ({len(data):,} bytes): {cpu_s:.1f} s: {why}")
    assert not found
