"""More ranks: the simulation against results by hand, and real ranks beside."""

import math
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
from test_lab_studies import result_of, study_page

from fixtures import PENSTOCK
from penstock_lab import model, scale, study
from penstock_lab.model import Behaviour, Cluster, ModelTraining, SharedStorage, trained
from penstock_lab.study import Point
from slowtier import needs_fuse, nothing_stays  # noqa: F401 - a fixture

RECORD = Behaviour("feed-shuffled", 1.0, 10_000.0, 10_000.0, 0.0, 0.0, 32.0)
FAST = SharedStorage(1e12, math.inf, 1e-6)


def test_a_training_that_computes_longer_than_it_reads_waits_for_nothing() -> None:
    for nodes in (1, 4, 64):
        training = trained(RECORD, FAST, Cluster(nodes, 2, 2), ModelTraining(10, 0.1, 0.0))
        assert training.records_hz == pytest.approx(nodes * 2 * 10 / 0.1, rel=1e-3)
        assert training.stall_most < 1e-3


def test_storage_that_all_share_is_the_limit_whatever_their_number() -> None:
    storage = SharedStorage(1e8, math.inf, 1e-6)  # 10,000 records/s
    for nodes in (4, 16, 64):
        training = trained(RECORD, storage, Cluster(nodes, 1, 1), ModelTraining(10, 0.001, 0.0), 40)
        assert training.records_hz == pytest.approx(10_000, rel=0.05)
        # A step is `nodes` milliseconds, with a millisecond of computing: the last served rank
        # waits for all others, the first waits for nobody except in the sum.
        assert training.stall_most == pytest.approx(1 - 1 / nodes, abs=0.05)
        assert training.stall == pytest.approx(training.stall_most / 2, abs=0.1)
        assert training.stall_least <= training.stall <= training.stall_most


def test_a_request_rate_and_a_link_limit_too() -> None:
    slow = trained(
        RECORD, SharedStorage(1e12, 500.0, 1e-6), Cluster(2, 1, 1), ModelTraining(10, 0.0, 0.0), 40
    )
    assert slow.records_hz == pytest.approx(500, rel=0.05)
    link = SharedStorage(1e12, math.inf, 1e-6, 1e6)  # 100 records/s a node
    both = trained(RECORD, link, Cluster(2, 4, 4), ModelTraining(10, 0.0, 0.0), 40)
    assert both.records_hz == pytest.approx(200, rel=0.05)


def test_without_reading_ahead_input_and_computing_add_up() -> None:
    storage = SharedStorage(1e6, math.inf, 1e-6)  # 0.1 s a batch
    ahead = trained(RECORD, storage, Cluster(1, 1, 1), ModelTraining(10, 0.1, 0.0, 1), 40)
    alone = trained(RECORD, storage, Cluster(1, 1, 1), ModelTraining(10, 0.1, 0.0, 0), 40)
    assert ahead.records_hz == pytest.approx(100, rel=0.02)
    assert alone.records_hz == pytest.approx(50, rel=0.02)
    assert alone.stall == pytest.approx(0.5, abs=0.02)


def test_a_sum_costs_as_much_for_each_doubling() -> None:
    for ranks, doublings in ((2, 1), (8, 3)):
        training = trained(RECORD, FAST, Cluster(ranks, 1, 1), ModelTraining(10, 0.1, 0.02))
        assert training.records_hz == pytest.approx(ranks * 10 / (0.1 + 0.02 * doublings), rel=1e-3)


def test_processors_of_a_node_are_shared() -> None:
    costly = Behaviour("feed-shuffled", 1.0, 10_000.0, 10_000.0, 0.01, 0.0, 32.0)
    training = trained(costly, FAST, Cluster(1, 4, 2), ModelTraining(10, 0.0, 0.0), 40)
    assert training.records_hz == pytest.approx(200, rel=0.05)


def test_strong_scaling_keeps_the_batch_and_the_computing_of_all() -> None:
    for ranks in (1, 2, 4):
        batch, compute_s = scale._step({"scaling": "strong", "ranks": ranks})
        assert (ranks * batch, ranks * compute_s) == (128, pytest.approx(0.1))
        assert scale._step({"scaling": "weak", "ranks": ranks}) == (32, 0.025)


def test_which_storage_was_simulated_stands_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale.ladder, "make_lmdb", lambda *_: None)
    monkeypatch.setattr(scale.study, "carried_out", lambda *_, **__: ([], []))
    settings = [
        scale.measured(tmp_path, scale.ScaleSettings(bandwidth_bps=bandwidth)).settings
        for bandwidth in (1e9, 2e9)  # one folder: the measurements are equal
    ]
    assert [values["bandwidth_bps"] for values in settings] == [1e9, 2e9]
    assert {key: value for key, value in settings[0].items() if settings[1][key] != value} == {
        "bandwidth_bps": 1e9
    }
    assert set(scale.SIMULATED) <= set(settings[0])


def reading(place: str, repeats: int, least: float, rate: float, most: float) -> Point:
    values = {"images_hz": rate, "cpu_s": 1e-5}
    factors = {"place": place, "launcher": "mpirun", "scaling": "reading", "ranks": 1}
    return Point(
        factors, repeats, values, values | {"images_hz": least}, values | {"images_hz": most}
    )


def test_the_cluster_is_simulated_from_the_run_that_nothing_disturbed() -> None:
    calm, torn = reading("latency", 3, 2800, 2900, 2950), reading("shared", 3, 1728, 2900, 2950)
    name, said = scale._calibration([torn, calm])
    assert name == "latency, mpirun"
    assert "`latency` by mpirun: 2,900 records/s and 10 us of processor time" in said
    assert "3 runs, of which the farthest are 5 % apart" in said
    name, said = scale._calibration([torn])
    assert name == ""
    assert "not simulated" in said
    assert "42 % apart, more than 25 %" in said
    name, said = scale._calibration([reading("shared", 1, 2900, 2900, 2900)])
    assert name == "shared, mpirun"
    assert said.endswith("one run: whether it was disturbed is not known")
    assert scale._calibration([])[0] == ""


def test_as_many_ranks_as_are_asked_for_have_records(tmp_path: Path) -> None:
    few, many = scale.ScaleSettings(), scale.ScaleSettings(ranks=(2, 16))
    assert {case["ranks"] for case in scale._cases(few)} == {1, 2, 3, 4}
    cases = [case for case in scale._cases(many) if case["scaling"] == "weak"]
    assert {case["ranks"] for case in cases} == {2, 16}
    for settings, most in ((few, 4), (many, 16)):
        assert scale._data_bytes(settings) == most * 32 * 60 * scale.RECORD_BYTES
    assert scale._lmdb_of(tmp_path, few) != scale._lmdb_of(tmp_path, many)


def test_ranks_that_do_not_divide_the_batch_are_told() -> None:
    (said,) = scale._undivided(scale.ScaleSettings(ranks=(2, 3, 5)))
    assert said.startswith("strong scaling by 3, 5 ranks: left out: 128 records of a step")
    assert scale._undivided(scale.ScaleSettings(ranks=(1, 2, 4))) == []
    errors = scale._told([], [], [0.5], scale.ScaleSettings())
    assert errors[0].startswith("error of the simulation on the 1 measured point of more than one")


def test_the_picture_shows_what_each_rank_lost() -> None:
    kept = study.read_found(study_page.EXPERIMENTS / "scale-many" / "scale.json")
    figure = study.pyplot().figure()
    scale._drawn(figure, kept.points)
    shown = {axis.get_title(): axis for axis in figure.axes}
    for place in ("shared", "latency"):
        axis = shown[f"{place}: efficiency, stall"]
        said = [text.get_text() for text in axis.get_legend().get_texts()]
        assert said[-2:] == ["efficiency", "stall: ranks' mean, least to most"]
        shares = [y for line in axis.get_lines() for y in line.get_ydata()]
        assert 0 < min(shares) < max(shares) == pytest.approx(100)


def test_what_fitted_the_simulation_is_no_error_of_it() -> None:
    def point(scaling: str, ranks: int, rate: float) -> Point:
        values = dict.fromkeys(measure.key for measure in scale.STUDY.measures)
        values |= {
            "images_hz": rate, "requests": 1.0, "device_bytes": 34_000.0, "cpu_s": 1e-5,
            "sum_s": 1e-4,
        }  # fmt: skip
        factors = {"place": "shared", "launcher": "mpirun", "scaling": scaling, "ranks": ranks}
        return Point(factors, 1, values, {}, {})

    measured = [point("reading", 1, 2900.0), point("weak", 1, 1270.0), point("weak", 4, 2800.0)]
    checked, behaviours = scale._checked(measured, 60)
    assert list(behaviours) == ["shared, mpirun"]
    assert checked[0]["error"] is None
    # Computing for one rank, the server's 100 MB/s for four.
    assert abs(checked[1]["error"]) < 0.05
    assert abs(checked[2]["error"]) < 0.08


def test_9216_processes_are_simulated_in_seconds() -> None:
    settings = scale.ScaleSettings(bandwidth_bps=10e9)
    beyond = scale._beyond(RECORD, settings, None)
    assert {p["ranks"] for p in beyond} >= {2048, 9216}
    weak = {p["ranks"]: p for p in beyond if p["scaling"] == "weak"}
    assert weak[36]["efficiency"] > 0.95
    assert weak[9216]["efficiency"] < 0.2  # 10 GB/s and 200,000 requests/s for 118 GB/s wanted
    # The last served rank waits for the storage; the others wait for the last rank in the sum.
    assert weak[9216]["stall_most"] > 0.8


@pytest.mark.alone
@pytest.mark.experiment(study="scale")
@pytest.mark.slow
@needs_fuse
@pytest.mark.skipif(
    find_spec("mpi4py") is None or shutil.which("mpirun") is None or find_spec("torch") is None,
    reason="mpi4py, mpirun or PyTorch is not installed",
)
def test_real_ranks_share_a_server_and_the_simulation_says_so(tmp_path: Path) -> None:
    command = [PENSTOCK, "bench", "scale", tmp_path, "--scale", "ci", "--repeats", "1"]
    command += ["--ranks", "1,4"]
    done = subprocess.run([*command, "--on", "shared"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path, "scale")
    points = {
        tuple(study_point["factors"].values()): study_point["values"]
        for study_point in result["points"]
    }
    errors: list[float] = []
    for launcher in scale.LAUNCHERS:
        alone, four = (points["shared", launcher, "weak", ranks] for ranks in (1, 4))
        assert alone["efficiency"] == 1
        assert alone["of_ceiling"] < four["of_ceiling"] < 1.1
        assert four["efficiency"] < 0.9  # 157 MB/s wanted of 100
        for ranks in (1, 4):
            for scaling in ("weak", "strong"):
                point = points["shared", launcher, scaling, ranks]
                assert point["stall_least"] <= point["stall"] <= point["stall_most"] < 1
                # No faster than the server, measured or simulated; less where others compute.
                for rate in ("images_hz", "simulated_hz"):
                    assert point[rate] < 1.1 * 100e6 / 30_600
                errors.append(point["error"])
        assert points["shared", launcher, "strong", 4]["images_hz"] > alone["images_hz"]
    # A disturbed machine slows some of the runs, and none of the simulations: half of the runs
    # suffice.
    assert min(errors) > -0.5
    assert median(errors) < 1
    assert points["cluster", "simulated", "weak", 9216]["efficiency"] < 0.2
    assert not (tmp_path / "ranks").exists()
    assert model.ASSUMPTIONS[0] in result["more"]["assumptions"]
