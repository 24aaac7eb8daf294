"""`penstock bench burst`: what a burst buffer brings an unchanged program, by the tiers' ratio."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RunError
from penstock_lab import bursts
from penstock_lab.bursts import EVERY, BurstSettings, Line
from penstock_lab.study import Point
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

POSITIVE = st.floats(1e-3, 1e3)


@given(cpu_s=POSITIVE, fast_s=POSITIVE)
def test_the_line_through_saves_is_the_one_that_made_them(cpu_s: float, fast_s: float) -> None:
    made = Line(cpu_s, fast_s)
    line = bursts.line_of([(ratio, cpu_s + ratio * fast_s) for ratio in (1, 2, 5, 10)])
    assert line is not None
    assert line.gain(7) == pytest.approx(made.gain(7), rel=1e-4)
    least = made.from_ratio(2.6)
    assert made.gain(least) == pytest.approx(2.6)
    assert made.gain(0.9 * least) < 2.6


def test_without_two_ratios_or_a_rise_there_is_no_line() -> None:
    assert bursts.line_of([(2.0, 1.0), (2.0, 1.1)]) is None
    assert bursts.line_of([(1.0, 2.0), (4.0, 1.0)]) is None


def test_a_gain_is_of_what_saves_add_to_the_loop() -> None:
    def point(way: str, ratio: float, total_s: float) -> Point:
        values = dict.fromkeys(measure.key for measure in bursts.STUDY.measures)
        factors = {"place": "tiers", "saver": "torch", "way": way, "ratio": ratio}
        return Point(factors, 1, values | {"total_s": total_s}, dict(values), dict(values))

    derived = bursts._derived([
        point("none", 1.0, 10.0), point("slow", 4.0, 14.0), point("burst", 4.0, 11.0),
        point("slow", 2.0, 12.0), point("burst", 2.0, 10.0),
    ])  # fmt: skip
    assert [derived_point["overhead_s"] for derived_point in derived] == [None, 4.0, 1.0, 2.0, 0.0]
    # Nothing above no save at all: no ratio.
    assert [derived_point["gain"] for derived_point in derived] == [None, 1.0, 4.0, 1.0, None]


@pytest.mark.parametrize("change", ["missing", "link", "short", "torn"])
def test_a_save_that_is_not_whole_on_the_slow_tier_is_no_result(
    tmp_path: Path, change: str
) -> None:
    torch = pytest.importorskip("torch")
    size = round(0.0001 * bursts.STATE_BYTES)
    job = {"way": "burst", "saver": "torch", "share": 0.0001, "saves": 2}
    last = tmp_path / f"step-{2 * EVERY:08d}.pt"
    torch.save({"x": torch.rand(size // 4)}, last)
    bursts._checked(tmp_path, job)
    if change == "missing":
        last.rename(tmp_path / f"step-{EVERY:08d}.pt")
    elif change == "link":
        last.rename(tmp_path / "elsewhere")
        last.symlink_to(tmp_path / "elsewhere")
    elif change == "short":
        last.write_bytes(last.read_bytes()[: size // 2])
    else:
        data = bytearray(last.read_bytes())
        data[size // 2] ^= 1
        last.write_bytes(data)
    with pytest.raises(RunError, match="slow tier"):
        bursts._checked(tmp_path, job)


@needs_fuse
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_an_unchanged_program_waits_for_the_fast_tier_only(
    tmp_path: Path,
    nothing_stays: None,  # noqa: F811
) -> None:
    """Ten times as slow a tier: its time at the set bandwidth bounds the saves straight to it."""
    settings = BurstSettings("ci", savers=("torch",))
    case = {"place": "tiers", "saver": "torch", "ratio": 10.0}
    slow = bursts._run(tmp_path, case | {"way": "slow"}, settings)
    burst = bursts._run(tmp_path, case | {"way": "burst"}, settings)
    tier_s = bursts.SHARE["ci"] * bursts.STATE_BYTES / (bursts.FAST_BPS / 10)
    assert slow["save_s"] > 0.9 * tier_s
    assert burst["save_s"] < 0.7 * slow["save_s"]
    assert burst["durable_s"] > tier_s  # the run ends when the copies are home
    json.dumps([slow, burst])
    assert not (tmp_path / "penstock-bench").exists()
