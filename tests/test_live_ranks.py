"""Watch and report agree for ranks that wait for each other and for ranks that do not."""

from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from fixtures import UNCOMPILED, thorough
from logwriter import START_NS, Process
from penstock.explain import live as live_module
from penstock.explain.live import Live, Monitor
from penstock.explain.live import ranks as live_ranks
from penstock.explain.live.shape import UNJOINED, Stall
from penstock.explain.measures import Measures, measure, whole
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from penstock.views import live as view
from penstock.views.metrics import GAUGES, SECONDS
from stepping import MS, Ranks, apart, even, now_and_then, one_slow, together
from watching import watched_to_its_end

COMPUTE = even(20, 24)
needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)


def one_straggles(steps: int = 30) -> Ranks:
    return together(10, steps, one_slow(60, rank=2), COMPUTE)


def watched(folder: Path, looks: int = 3) -> Live:
    monitor = Monitor(folder)
    return [monitor.look() for _ in range(looks)][-1]


def measured(folder: Path) -> Measures:
    with open_run(folder) as run:
        return measure(run)


def running(monkeypatch: pytest.MonkeyPatch, now_ms: float) -> None:
    """Make all processes alive and set the clock to now_ms milliseconds after the logs' start."""
    monkeypatch.setattr(live_module, "is_alive", lambda header: True)
    now_ns = START_NS + round(now_ms * MS) + live_module.SLACK_NS
    monkeypatch.setattr(live_module.time, "monotonic_ns", lambda: now_ns)


@pytest.mark.parametrize(
    "ranks",
    [
        one_straggles(),
        together(8, 120, now_and_then(20), COMPUTE),
        together(4, 300, now_and_then(20), COMPUTE, every=16),
        apart(10, 40, one_slow(60, rank=2), COMPUTE),
        apart(4, 150, now_and_then(20), COMPUTE),
        together(10, 6, one_slow(60, rank=2), COMPUTE),
        together(1, 40, one_slow(60), COMPUTE),
    ],
    ids=["straggler", "by turns", "every 16th", "apart", "apart by turns", "few", "alone"],
)
def test_of_ranks_a_watch_counts_as_the_report_does(tmp_path: Path, ranks: Ranks) -> None:
    folder = ranks.logs(tmp_path / "run")
    value, measures = watched(folder), measured(folder)
    assert value.ranks == measures.coupling.how
    least, most = value.total.stall_between
    assert least == pytest.approx(measures.stall_fraction.value, abs=1e-6)
    assert value.total.mean_stall == pytest.approx(measures.mean_stall.value, abs=1e-6)
    training = measures.training
    data_wait_s = value.total.data_wait_s / value.mains
    assert data_wait_s == pytest.approx(training.data_wait_s, abs=1e-6)
    if value.ranks == "not known":
        assert most == pytest.approx(training.most_stall_s / training.wall_s, abs=1e-6)
    else:
        assert most == least


def test_one_rank_that_straggles_holds_up_all_and_both_numbers_are_named(tmp_path: Path) -> None:
    ranks = one_straggles()
    value = watched(ranks.logs(tmp_path / "run"))
    assert value.total.stall == pytest.approx(ranks.lost, rel=0.02)
    assert value.total.mean_stall == pytest.approx(ranks.mean, rel=0.02)
    assert ranks.lost > 0.6
    assert ranks.mean < 0.1
    lost, mean = round(ranks.lost * 100), round(ranks.mean * 100)
    said = view.line(value)
    stall = f"stall {lost} % (data {lost}), mean over ranks {mean} %"
    assert said.endswith(f"{stall}, slowest since the start: rank 2")
    panel = " ".join(view.render(value, 100).split())
    assert f"Of the whole run {lost} % lost by the job, mean over ranks {mean} %" in panel
    assert f"compute {100 - lost}" in panel


def test_ranks_that_do_not_wait_for_each_other_have_their_mean(tmp_path: Path) -> None:
    value = watched(apart(10, 40, one_slow(60, rank=2), COMPUTE).logs(tmp_path / "run"))
    assert value.ranks == "apart"
    assert value.total.stall == value.total.mean_stall
    assert value.slowest == ""
    assert "mean over ranks" not in view.line(value)
    assert "% stalled" in view.render(value, 100)


def test_where_it_is_not_known_a_watch_tells_bounds_and_judges_nothing(tmp_path: Path) -> None:
    folder = together(10, 6, one_slow(60, rank=2), COMPUTE).logs(tmp_path / "run")
    value, report = watched(folder), report_of(measured(folder))
    assert value.total.stall is value.total.storage is None
    least, most = value.total.stall_between
    assert least == pytest.approx(report.verdict.stall_least.value)
    assert most == pytest.approx(report.verdict.stall_most.value)
    told = f"stall at least {least * 100:.0f} %, at most {most * 100:.0f} %"
    assert told in view.line(value)
    panel = " ".join(view.render(value, 100).split())
    assert "NOT JUDGED" in panel
    assert "not known which" in panel


def test_the_metrics_name_both_numbers_and_leave_out_what_is_not_known(tmp_path: Path) -> None:
    known = watched(one_straggles().logs(tmp_path / "known"))
    unknown = watched(together(10, 6, one_slow(60, rank=2), COMPUTE).logs(tmp_path / "unknown"))

    def gauge(name: str, value: Live) -> float | None:
        return GAUGES[name][2](replace(value, recent=value.total))

    assert gauge("stall", known) == gauge("stall_least", known) == gauge("stall_most", known)
    assert gauge("stall", known) == pytest.approx(0.708, abs=0.01)
    assert gauge("mean_stall", known) == pytest.approx(0.081, abs=0.01)
    assert gauge("stall_is_measured", known) == 1
    assert gauge("stall", unknown) is None
    assert gauge("stall_is_measured", unknown) == 0
    assert gauge("stall_least", unknown) < 0.1 < 0.6 < gauge("stall_most", unknown)  # type: ignore[operator]
    seconds = {name: of(known.total) for name, (_, of) in SECONDS.items()}
    assert seconds["data_wait"] > 8 * seconds["mean_stall"]


def test_a_stall_of_one_process_is_what_it_was() -> None:
    alone = Stall(60.0, 11.4, 6.2, 7.2, 5.9, 0.4)
    assert alone.stall == alone.mean_stall == pytest.approx(19 / 60)
    assert "mean over ranks" not in view.line(watched_of(alone))


def watched_of(stall: Stall) -> Live:
    seen = (60.0, 60.0, 1, 1, 0, 9, None)
    return Live("run", "python", "node1", "over", *seen, stall, stall, (), (), (), (), ())


def test_the_share_that_is_worth_doubt_is_the_reports() -> None:
    assert UNJOINED == whole.UNSURE_SHARE


@pytest.mark.parametrize("kept", [live_ranks.STEPS_KEPT, 110, 40])
@pytest.mark.parametrize(
    "ranks",
    [
        together(4, 300, now_and_then(20), COMPUTE),
        together(4, 300, now_and_then(20), COMPUTE, every=16),
        apart(4, 300, now_and_then(20), COMPUTE),
    ],
    ids=["in each step", "every 16th", "apart"],
)
def test_looking_often_and_forgetting_steps_changes_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks, kept: int
) -> None:
    monkeypatch.setattr(live_ranks, "STEPS_KEPT", kept)
    monkeypatch.setattr(live_ranks, "LEAST_KEPT", kept)
    folder = tmp_path / "run"
    ranks.logs(folder, steps=1)
    monitor = Monitor(folder)
    for steps in range(1, 300, 23):
        running(monkeypatch, float(ranks.ends[steps].max()))
        ranks.logs(folder, steps=steps)
        value = monitor.look()
        assert value.state == "running"
        assert value.total.stall_between[0] is not None
        kept_now = [len(one.trainer[1].ends) for one in monitor._processes.values() if one.trainer]
        assert max(kept_now) <= 2 * kept + 23
    monkeypatch.undo()
    monkeypatch.setattr(live_ranks, "STEPS_KEPT", kept)
    monkeypatch.setattr(live_ranks, "LEAST_KEPT", kept)
    ranks.logs(folder)
    value = [monitor.look() for _ in range(3)][-1]
    measures = measured(folder)
    assert value.state == "over"
    assert value.total.mean_stall == pytest.approx(measures.mean_stall.value, abs=1e-6)
    if kept > 40:
        assert value.ranks == measures.coupling.how
        assert monitor._ranks.size == (measures.coupling.size or 1)
        assert value.total.stall == pytest.approx(measures.stall_fraction.value, abs=1e-6)
    else:  # too few kept steps: the coupling may be unknown
        assert value.ranks in (measures.coupling.how, "not known")


def test_a_wait_of_one_rank_that_is_open_holds_up_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = one_straggles()
    folder = ranks.logs(tmp_path / "run", steps=29, waiting=2)
    running(monkeypatch, float(ranks.ends[29].max()) + 120_000)
    monitor = Monitor(folder)
    monitor.look()
    value = monitor.look()
    assert value.ranks == "together"
    assert value.recent.stall == pytest.approx(1.0, abs=0.02)
    assert value.recent.mean_stall == pytest.approx(0.1, abs=0.02)
    assert value.seconds[-2].data_wait == pytest.approx(1.0, abs=0.02)


def test_of_logs_that_are_read_from_their_end_steps_are_matched_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank makes more calls, so the part of the log that is read has fewer steps."""
    monkeypatch.setattr(live_module, "BACKLOG_UNITS", 1)
    ranks = together(3, 1560, now_and_then(30), COMPUTE)
    value = watched(ranks.logs(tmp_path / "run", busy=1))
    assert any("before it is long" in gap for gap in value.gaps)
    assert value.ranks == "together"
    assert value.total.mean_stall == pytest.approx(ranks.mean, abs=0.05)
    # The loss is not known for steps that are missing from the log of a rank.
    assert value.total.stall is None
    least, most = value.total.stall_between
    assert least < ranks.lost - 0.1
    assert most > ranks.lost + 0.1


def test_logs_that_are_read_from_the_same_step_on_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "BACKLOG_UNITS", 1)
    ranks = together(3, 1560, now_and_then(30), COMPUTE)
    cut = watched(ranks.logs(tmp_path / "cut"))
    assert cut.ranks == "together"
    assert cut.total.stall == pytest.approx(ranks.lost, abs=0.05)
    assert cut.total.mean_stall == pytest.approx(ranks.mean, abs=0.05)


def test_a_process_that_only_evaluates_is_none_of_those_that_train(tmp_path: Path) -> None:
    folder = one_straggles().logs(tmp_path / "run")
    evaluates = Process(pid=900)
    for n in range(20):
        evaluates.span("data wait", n * 100 * MS, 90 * MS, n, 1, 1000)
        evaluates.step(n, (n * 100 + 90) * MS, 10 * MS, b=2)
    evaluates.write(folder)
    value, measures = watched(folder), measured(folder)
    assert value.mains == measures.training.mains == 10
    assert value.total.stall == pytest.approx(measures.stall_fraction.value, abs=1e-6)


def test_of_a_job_without_steps_no_more_waits_are_kept_than_a_step_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_ranks, "HALTS_KEPT", 50)
    process = Process()
    for n in range(400):
        process.span("data wait", n * 20 * MS, 10 * MS, n, 1, 1000)
    process.write(tmp_path)
    monitor = Monitor(tmp_path)
    value = [monitor.look() for _ in range(3)][-1]
    assert value.total.data_wait_s == pytest.approx(399 * 0.010)
    assert value.total.mean_stall == value.total.stall
    (kept,) = monitor._processes.values()
    assert kept.trainer is not None
    assert len(kept.trainer[1].halts) == 50


def test_what_was_counted_and_forgotten_stays_when_another_process_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_ranks, "STEPS_KEPT", 40)
    monkeypatch.setattr(live_ranks, "LEAST_KEPT", 40)
    ranks = together(4, 300, now_and_then(20), COMPUTE)
    folder = ranks.logs(tmp_path / "run")
    monitor = Monitor(folder)
    before = [monitor.look() for _ in range(3)][-1]
    late = Process(pid=900)
    late.span("data wait", 0, MS, 0, 1, 1000)
    for n in range(3):
        late.step(n, (n + 1) * MS, MS, b=1)
    late.write(folder)
    after = [monitor.look() for _ in range(3)][-1]
    assert after.mains == before.mains + 1
    assert after.total.data_wait_s == pytest.approx(before.total.data_wait_s, rel=1e-6)


def test_waits_that_were_forgotten_before_the_first_step_stay_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_ranks, "HALTS_KEPT", 50)
    process = Process(header={"state": "running"})
    for n in range(400):
        process.span("data wait", n * 20 * MS, 10 * MS, n, 1, 1000)
    process.write(tmp_path)
    running(monkeypatch, 8000)
    monitor = Monitor(tmp_path)
    before = monitor.look()
    process.step(0, 7995 * MS, 20 * MS, b=1)
    process.write(tmp_path)
    running(monkeypatch, 8100)
    after = monitor.look()
    assert (before.steps, after.steps) == (0, 1)
    assert after.total.data_wait_s == pytest.approx(before.total.data_wait_s)


def test_a_save_after_the_last_step_belongs_to_that_step(tmp_path: Path) -> None:
    folder = one_straggles().logs(tmp_path / "run", saves_ms=80)
    value, measures = watched(folder), measured(folder)
    assert value.ranks == measures.coupling.how == "together"
    assert value.total.checkpoint_s / 10 == pytest.approx(measures.training.checkpoint_block_s)
    assert value.total.stall == pytest.approx(measures.stall_fraction.value, abs=1e-6)


def test_at_the_begin_it_is_not_known_whether_ranks_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = one_straggles()
    folder = ranks.logs(tmp_path / "run", steps=1, waiting=2)
    running(monkeypatch, float(ranks.ends[1].max()) + 120_000)
    value = Monitor(folder).look()
    assert value.ranks == "not known"
    assert value.recent.stall is None
    least, most = value.recent.stall_between
    assert least == pytest.approx(0.1, abs=0.01)
    assert most == pytest.approx(1.0, abs=0.01)


JOB = """
import os, sys, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

RANK, MEETS, STEPS = int(os.environ["RANK"]), sys.argv[1] == "together", 90

class Items(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, number):
        if RANK == 0:
            time.sleep(0.03)
        return torch.zeros(1)

if MEETS:
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"),
                            rank=RANK, world_size=3)
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in DataLoader(Items(), batch_size=1):
    optimizer.zero_grad()
    net(batch.reshape(-1, 1)).sum().backward()
    for parameter in net.parameters():
        if MEETS:
            dist.all_reduce(parameter.grad)
    time.sleep(0.005)
    optimizer.step()
"""
LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "rank.py", sys.argv[1]],
                          env=os.environ | {"RANK": str(n), "WORLD_SIZE": "3"}) for n in range(3)]
sys.exit(sum(rank.wait() for rank in ranks))
"""


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("how", ["together", thorough("apart", like="together")])
def test_a_watched_job_of_three_ranks_ends_with_the_stall_of_its_report(
    tmp_path: Path, how: str
) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'penstock[torch]'")
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    (tmp_path / "rank.py").write_text(UNCOMPILED + JOB)
    (tmp_path / "job.py").write_text(LAUNCHER)
    values = watched_to_its_end(tmp_path, how)
    last, measures = values[-1], measured(tmp_path / "run")
    assert last.mains == measures.training.mains == 3
    assert last.ranks == measures.coupling.how
    assert last.total.mean_stall == pytest.approx(measures.mean_stall.value, abs=0.02)
    assert last.total.stall_between[0] == pytest.approx(measures.stall_fraction.value, abs=0.02)
    if how == "together":
        assert last.ranks == "together"
        assert (last.total.stall or 0.0) > 2 * (last.total.mean_stall or 0.0)
    else:
        assert last.ranks != "together"
        assert last.total.stall in (None, last.total.mean_stall)
