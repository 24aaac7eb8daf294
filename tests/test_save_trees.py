"""Test models of gradient boosting, Julia, Burn and Darknet: a cut file is found by its lengths, or
is unchecked in words."""

from __future__ import annotations

import io
import os
import random
import struct
from pathlib import Path

import h5py
import msgpack
import numpy as np
import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.save.check.foreign import Damage, Scope
from penstock.save.check.judges import check_file
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.verify import latest_valid
from saves import drained


def text(value: str) -> bytes:
    return b"L" + struct.pack(">q", len(value)) + value.encode()


def ubjson(value: object) -> bytes:
    """Encode a value as XGBoost does: counted arrays without an end mark, typed arrays of numbers,
    mappings up to the end mark."""
    if isinstance(value, dict):
        return b"{" + b"".join(text(name) + ubjson(one) for name, one in value.items()) + b"}"
    if isinstance(value, np.ndarray):
        return b"[$d#L" + struct.pack(">q", value.size) + value.astype(">f4").tobytes()
    if isinstance(value, list):
        return b"[#L" + struct.pack(">q", len(value)) + b"".join(map(ubjson, value))
    if isinstance(value, str):
        return b"S" + text(value)
    return b"L" + struct.pack(">q", value) if isinstance(value, int) else b"N"


TREES = {"loss": np.arange(9), "ids": [3, 40, None], "names": [], "a": {}, "b": [{"c": ["d"]}]}
MODEL = {"learner": {"attributes": {}, "trees": [TREES, TREES]}, "version": [3, 2, 0]}


def jld2(tmp_path: Path) -> bytes:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w", userblock_size=512, libver="latest") as file:
        file["w"] = np.arange(500.0)
    return b"HDF5-based Julia Data Format".ljust(512, b"\0") + path.read_bytes()[512:]


def content(name: str, tmp_path: Path) -> bytes:
    if name.endswith(".jld2"):
        return jld2(tmp_path)
    return {
        "xgboost_12.ubj": ubjson(MODEL),
        "model_12.cbm": b"CBM1" + struct.pack("<I", 700) + os.urandom(700),
        "model-12.mpk": msgpack.packb({"item": {"w": bytes(600), "n": [1, 2.5]}}),
    }[name]


NAMES = ("xgboost_12.ubj", "model_12.cbm", "model-12.mpk", "model_12.jld2")


def judged(name: str, data: bytes) -> tuple[str, Scope]:
    scope = Scope("full", random.Random(0), lambda n_bytes: None)
    try:
        check_file(io.BytesIO(data), name, len(data), scope)
    except Damage as damage:
        return str(damage), scope
    return "", scope


@pytest.mark.parametrize("name", NAMES)
def test_each_cut_is_found(tmp_path: Path, name: str) -> None:
    data = content(name, tmp_path)
    why, scope = judged(name, data)
    assert (why, scope.unchecked, scope.by_name) == ("", {}, {})
    for length in range(8, len(data), 1 if len(data) < 2000 else 37):
        assert judged(name, data[:length])[0], length
    assert judged(name, bytes(len(data)))[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_save_that_was_killed_in_writing_is_not_copied(
    fast: Path, slow: Path, tmp_path: Path, name: str
) -> None:
    fast.mkdir(exist_ok=True)
    data = content(name, tmp_path)
    (fast / name).write_bytes(data)
    assert drained(fast, slow) == []
    cut = name.replace("12", "13")
    (fast / cut).write_bytes(data[: len(data) // 2])
    (left,) = drained(fast, slow)
    assert left.startswith(cut)
    assert not (slow / cut).exists()
    choice = latest_valid(fast, slow)
    assert (choice.step, choice.state) == (12, "complete by length")


def test_what_follows_the_trees_of_catboost_has_no_length(tmp_path: Path) -> None:
    data = content("model_12.cbm", tmp_path)
    why, scope = judged("model_12.cbm", data + os.urandom(50))
    assert (why, list(scope.by_name)) == ("", ["model_12.cbm"])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (ubjson(MODEL) + b"x", "more follows"),
        (b"{L" + struct.pack(">q", -5), "cut short"),
        (b"[#L" + struct.pack(">q", 1 << 60), "cut short"),
        (b"[$d#L" + struct.pack(">q", 10) + b"1234", "cut short"),
        (b"[$d" + bytes(20), "no count"),
        (b"{x" + bytes(20), "no length"),
        (b"[" * 50 + b"?" * 9, "no value"),
        (b"[i\x01[]N]", ""),
    ],
)
def test_ubjson_is_followed_within_bounds(data: bytes, said: str) -> None:
    why, _ = judged("a.ubj", data)
    assert said in why
    assert bool(why) == bool(said)


def test_deep_ubjson_is_unchecked() -> None:
    why, scope = judged("a.ubj", b"[" * 1000)
    assert (why, list(scope.unchecked)) == ("", ["a.ubj"])


@pytest.mark.parametrize("name", ["yolov4_1000.weights", "model_3.joblib", "model_3.cbm"])
def test_a_file_without_a_length_is_unchecked_in_words(fast: Path, slow: Path, name: str) -> None:
    fast.mkdir(exist_ok=True)
    (fast / name).write_bytes(b"\x01\xfe" + os.urandom(3000))
    ended = CliRunner().invoke(cli.cli, ["save", "verify", str(fast)])
    assert ended.exit_code == 0, ended.output
    assert f"{name}" in ended.output
    assert "unchecked" in ended.output
    assert drained(fast, slow) == []
    assert latest_valid(fast, slow).state == "unchecked"


@pytest.mark.parametrize(("name", "is_told"), [("agent.brain", True), ("run.log", False)])
def test_a_file_of_no_checkpoint_that_is_copied_unchecked_is_named(
    fast: Path, slow: Path, name: str, is_told: bool
) -> None:
    fast.mkdir(exist_ok=True)
    (fast / name).write_bytes(b"\xff\xfe\0" + os.urandom(1 << 20))
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        assert working.once() == []
        said = f"{name}, a file of no checkpoint, is copied: unchecked"
        assert (said in working.status.warning) == is_told
    assert (slow / name).exists()
