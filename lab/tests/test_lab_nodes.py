"""Nodes that share a server: the reads of each node, and the parts of a record's time."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_lab import ladder, nodes
from penstock_lab.nodes import NodesSettings, RecordTime
from penstock_lab.study import Point
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

pytest.importorskip("lmdb")

GRID = [(n, k) for n in (1, 2, 4, 8) for k in (1, 2)]
TIMES = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))


@settings(deadline=None)
@given(own_s=st.floats(1e-3, 1.0), node_s=TIMES, second_s=TIMES, is_alone=st.booleans())
def test_the_fit_predicts_the_points_that_its_times_made(
    own_s: float, node_s: float, second_s: float, is_alone: bool
) -> None:
    made = RecordTime(own_s, node_s, *((0.0, second_s) if is_alone else (second_s, 0.0)))
    points = [(n, k, 1 / made.seconds(n, k)) for n, k in GRID]
    times = nodes.fitted(points[::2] + points[1::4])
    assert min(times.own_s, times.node_s, times.process_s, times.alone_s) >= 0
    for n, k in GRID:
        assert times.seconds(n, k) == pytest.approx(made.seconds(n, k), rel=1e-3)


def test_no_time_is_negative_whatever_was_measured() -> None:
    """Faster with more nodes: only a wait shared out by the processes falls with the processes."""
    times = nodes.fitted([(1, 1, 100.0), (2, 1, 150.0), (4, 2, 200.0), (8, 2, 220.0)])
    assert min(times.own_s, times.node_s, times.process_s) >= 0
    assert times.alone_s > 0
    assert times.node_s == 0


def test_a_point_that_gave_a_parameter_is_no_prediction() -> None:
    empty = {measure.key: None for measure in nodes.STUDY.measures}
    made = RecordTime(0.0, 0.001, 0.0, 0.0)
    points = [
        Point(
            {"place": "server", "rung": "skip", "nodes": n, "per_node": k}, 1,
            empty | {"records_hz": 1 / made.seconds(n, k)}, dict(empty), dict(empty),
        )
        for n, k in GRID
    ]  # fmt: skip
    predicted_points, times = nodes._predicted(points)
    assert sum(point["is_fitted"] for point in predicted_points) == len(GRID) / 2
    assert times["skip"].node_s == pytest.approx(0.001)
    assert all(abs(point["error"]) < 1e-6 for point in predicted_points)


@needs_fuse
@pytest.mark.parametrize("rung", ["skip", "lmm", "index", "stag", "feed", "get-random"])
def test_nodes_read_each_record_once_and_caffes_reader_everything_on_each(
    tmp_path: Path,
    nothing_stays: None,  # noqa: F811
    rung: str,
) -> None:
    """Of two nodes with two processes each; the server counts."""
    lmdb = tmp_path / "lmdb"
    ladder.make_lmdb(lmdb, 4_000_000, ladder.RECORD_BYTES)
    truth: dict[int, tuple[int, int]] = {}
    case = {"place": "server", "rung": rung, "nodes": 2, "per_node": 2}
    row = nodes._measured(lmdb, case, NodesSettings("ci"), truth)
    assert row["records_hz"] > 0
    assert len(truth) > 0
    if rung == "skip":
        assert 1.9 < row["amplification"] < 2.5
    elif rung in ("index", "feed"):
        assert 0.9 < row["amplification"] < 1.6  # LMDB's own pages, and heads of neighbours
