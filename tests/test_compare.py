"""Two sides whose difference was made, what is said of it, and limits for CI."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from findings_examples import example, faulting, mapped
from logwriter import Process
from penstock.errors import PenstockError
from penstock.explain.compare import Comparison, baseline_limit, compare, limits, to_json
from penstock.explain.measures import measure
from penstock.explain.report import Check, Finding, Number, Report, report_of
from penstock.views import comparison as view
from synthetic import Synthetic, loop

MS = 1_000_000


def job(
    read_ms: float = 30,
    *,
    steps: int = 20,
    run: str = "runs/a",
    files: int = 1,
    command: str = "python train.py",
    folded: int = 0,
    is_marked: bool = True,
    served: int = 0,
) -> Report:
    """Steps of 60 ms of computing and read_ms of waiting, all of it in reads of the worker."""
    made = Synthetic()
    now = 0.0
    for n in range(steps + 1):
        end = now + read_ms
        made.wait(int(now * MS), int(end * MS), n)
        made.fetch(int(now * MS), int(end * MS), n)
        path = f"/data/{n % files}"
        made.file(path, size=1000)
        made.call("open", int(now * MS), int((now + 0.001) * MS), path=path, process=2)
        begun = int((now + 0.001) * MS)
        made.call("read", begun, int(end * MS), path=path, process=2, moved=1000)
        if is_marked:
            made.step(int((now if n else end - 0.001) * MS), int((end + 60) * MS), n)
        now = end + 60
    made.process(1, end=int((now + 5) * MS), command=command, folded_events=folded)
    made.worker(2, start=0, end=int((now + 5) * MS))
    if served:
        made.rows["staged"].append((2, "served", served))
    return report_of(measure(made), run)


@pytest.fixture(scope="module")
def slow() -> Report:
    return job(30, run="runs/slow")


@pytest.fixture(scope="module")
def fast() -> Report:
    return job(6, run="runs/fast")


def test_what_got_better_is_said_with_its_ratio(slow: Report, fast: Report) -> None:
    made = compare([slow], [fast])
    step = made.delta("step_s")
    assert (step.a, step.b) == (
        pytest.approx(0.09 * 21 / 21, rel=0.06),
        pytest.approx(0.066, rel=0.06),
    )
    assert step.change == "better"
    assert step.ratio == pytest.approx((step.b or 0) / (step.a or 1))
    assert made.headline.startswith("B is 1.3")
    assert "x as fast as A per step, stall 3" in made.headline
    assert made.delta("storage").change == "better"
    assert made.doubts == ()
    back = compare([fast], [slow])
    assert back.delta("step_s").change == "worse"
    assert "B takes 1.35x as long as A per step" in back.headline


def test_what_a_mapped_file_gave_is_not_measured_and_no_number() -> None:
    """As a training through py-lmdb is recorded where page faults cannot be sampled."""
    seen = report_of(measure(mapped(0)))
    assert compare([seen], [seen]).delta("storage").change == "same"  # no fetch stopped: known
    a, b = report_of(measure(mapped(600))), job(30, steps=50)
    assert a.verdict.storage.state == "incomplete"
    made = compare([a], [b])
    for key in ("storage", "read_bytes", "read_bps"):
        delta = made.delta(key)
        assert (delta.a, delta.ratio, delta.change) == (None, None, "not comparable"), key
        assert delta.b, key
    assert re.search("waits on storage +not measured", view.render(made, 100))
    sampled = report_of(measure(faulting(8)))
    told = compare([a], [sampled])
    assert told.delta("storage").b
    assert "read_bytes" not in {delta.key for delta in told.deltas}  # on neither side


def test_a_run_compared_with_itself_is_the_same(slow: Report) -> None:
    made = compare([slow], [slow])
    assert {delta.change for delta in made.deltas} == {"same"}
    assert made.headline.startswith("B is as fast as A, stall")


def test_differences_inside_the_spread_are_noise() -> None:
    a = [job(ms, run=f"runs/a{ms}") for ms in (28, 30, 32)]
    b = [job(ms, run=f"runs/b{ms}") for ms in (27, 29, 31)]
    made = compare(a, b)
    step = made.delta("step_s")
    assert step.change == "within noise"
    assert step.a_spread is not None
    assert step.a_spread[0] < (step.a or 0) < step.a_spread[1]
    assert "(within noise)" in made.headline
    c = [job(ms, run=f"runs/c{ms}") for ms in (8, 9)]
    assert compare(a, c).delta("step_s").change == "better"


def test_two_percent_apart_is_the_same_without_repetitions(slow: Report) -> None:
    near = job(30.5, run="runs/near")
    assert compare([slow], [near]).delta("step_s").change == "same"


def test_different_steps_compare_per_step_and_not_by_wall(slow: Report) -> None:
    made = compare([slow], [job(30, steps=40)])
    assert made.delta("wall_s").change == "not comparable"
    assert made.delta("wall_s").ratio is None
    assert made.delta("step_s").change == "same"
    assert any("different numbers of steps (21 and 41)" in doubt for doubt in made.doubts)


def test_different_programs_are_not_compared_in_time(slow: Report) -> None:
    made = compare([slow], [job(6, command="python other.py")])
    assert made.delta("step_s").change == "not comparable"
    assert made.delta("stall").change == "changed"
    assert any("different programs (other.py and train.py)" in doubt for doubt in made.doubts)
    assert not made.headline.startswith("B is")


def test_different_data_are_not_compared_in_bytes(slow: Report) -> None:
    made = compare([slow], [job(30, files=5)])
    assert made.delta("opens").change == "not comparable"
    assert any("different data (1 and 5 files read)" in doubt for doubt in made.doubts)


def test_a_run_without_steps_has_no_number_and_no_zero(slow: Report) -> None:
    made = Synthetic()
    made.process(1, end=1000 * MS)
    made.call("read", 0, MS, moved=1)
    other = report_of(measure(made), "runs/none")
    compared = compare([slow], [other])
    assert compared.delta("stall").b is None
    assert compared.delta("stall").change == "not comparable"
    assert "not measured in B" in compared.delta("stall").why
    assert any("without training steps" in doubt for doubt in compared.doubts)
    assert "not measured" in view.render(compared, 80)
    # What was measured of both is told of both, and what only one tells is not said to be missing.
    calls = compared.delta("io_s")
    assert calls.a is not None
    assert (calls.b, calls.change) == (pytest.approx(0.001), "not comparable")
    with pytest.raises(KeyError):
        compared.delta("life_s")
    assert compare([other], [other]).delta("life_s").change == "same"
    with pytest.raises(KeyError):
        compare([slow], [slow]).delta("io_s")


def test_without_steps_the_same_bytes_are_the_same_work() -> None:
    before, after = job(30, is_marked=False), job(6, is_marked=False)
    made = compare([before], [after])
    wait = made.delta("data_wait_s")
    assert (wait.a, wait.b) == (pytest.approx(0.6, rel=0.06), pytest.approx(0.12, rel=0.06))
    assert wait.change == made.delta("wall_s").change == "better"
    assert made.headline.startswith(f"data wait {wait.a:.3g} s → {wait.b:.3g} s, stall")
    assert any("all read the same number of bytes" in doubt for doubt in made.doubts)
    other = compare([before], [job(6, steps=10, is_marked=False)])
    assert other.delta("data_wait_s").change == "not comparable"
    assert other.delta("data_wait_s").ratio is None


def test_opens_that_a_tier_served_are_told(slow: Report) -> None:
    made = compare([slow], [job(6, served=21)])
    assert (made.delta("staged").a, made.delta("staged").b) == (0, 21)
    with pytest.raises(KeyError):
        compare([slow], [slow]).delta("staged")


def finding(rule: str, share: float) -> Finding:
    return Finding(rule, rule.lower(), ("seen",), Number(share, "s"), Number(share, "share"), ())


def test_findings_are_gone_new_or_kept(slow: Report, fast: Report) -> None:
    a = replace(slow, findings=(finding("D1", 0.3), finding("D2", 0.1)), checks=())
    b = replace(fast, findings=(finding("D2", 0.05), finding("W1", 0.2)), checks=())
    changes = [(one.rule, one.change) for one in compare([a], [b]).findings]
    assert changes == [("W1", "new"), ("D1", "gone"), ("D2", "kept")]


@pytest.mark.parametrize("state", ["not judged", "suppressed"])
def test_a_finding_that_the_other_side_was_not_judged_by_is_not_gone(
    slow: Report, fast: Report, state: str
) -> None:
    checks = (Check("D1", "d1", state, "for a reason"),)
    a = replace(slow, findings=(finding("D1", 0.3),), checks=())
    b = replace(fast, findings=(), checks=checks)
    for sides, name, word in (((a, b), "B", "30 %"), ((b, a), "A", "30 %")):
        made = compare([sides[0]], [sides[1]])
        assert [one.change for one in made.findings] == [f"{state} in {name}"]
        told = view.render(made)
        assert word in told
        assert not {"gone", "new"} & set(told.split())
        assert f"in {name}" in told.split("Findings")[1]


def test_of_different_programs_no_finding_is_gone(slow: Report, fast: Report) -> None:
    a = replace(slow, findings=(finding("D1", 0.3), finding("D2", 0.1)))
    b = replace(fast, findings=(finding("D2", 0.1), finding("W1", 0.1)), title="other.py")
    changes = {one.rule: one.change for one in compare([a], [b]).findings}
    assert changes == {"D1": "other program", "D2": "kept", "W1": "other program"}


def test_a_side_without_a_run_is_an_error(slow: Report) -> None:
    with pytest.raises(PenstockError, match="a run on each side"):
        compare([], [slow])


def test_json_holds_every_number(slow: Report, fast: Report) -> None:
    made = compare([slow, slow], [fast])
    plain = json.loads(to_json(made))
    assert plain["comparison"] == 1
    assert {delta["key"] for delta in plain["deltas"]} == {delta.key for delta in made.deltas}
    assert plain["a"]["runs"] == ["runs/slow", "runs/slow"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_paper(slow: Report, fast: Report, width: int) -> None:
    a = replace(slow, findings=(finding("D1", 0.3),), run="runs/" + "long/" * 40)
    made: Comparison = compare([a, a, a], [fast, fast])
    drawn = view.render(made, width)
    assert all(len(line) <= width for line in drawn.splitlines())
    assert "gone" in drawn
    assert "better" in drawn


# Limits


def test_a_limit_is_kept_or_passed_by_so_much(slow: Report) -> None:
    (kept,) = limits(slow, max_stall=0.5)
    assert kept.state == "kept"
    (passed,) = limits(slow, max_stall=0.10)
    assert passed.state == "passed"
    stall = slow.verdict.stall.value or 0
    assert f"stall {stall:.1%}".replace("%", " %") in passed.says
    assert f"{stall - 0.1:.1%}".replace("%", " points over") in passed.says
    assert [limit.key for limit in limits(slow, 0.5, 0.5)] == ["stall", "storage"]


def test_a_limit_of_waits_on_remote_storage() -> None:
    over_network, local = (report_of(example(rule)) for rule in ("N1", "D2"))
    assert over_network.verdict.remote.value == pytest.approx(0.95, abs=0.01)
    (passed,) = limits(over_network, max_remote=0.5)
    assert passed.state == "passed"
    assert "waits on remote storage 9" in passed.says
    assert limits(local, max_remote=0.01)[0].state == "kept"
    delta = compare([over_network], [local]).delta("remote")
    assert delta.b == 0
    assert "remote" not in {one.key for one in compare([local], [local]).deltas}


def test_a_wait_on_a_thread_that_may_wait_on_remote_storage_keeps_no_limit() -> None:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        run.blocked("cond_wait", at, at + 40 * MS, process=process)
        return at + 40 * MS

    loop(run, fetch, batches=30, workers=1, compute_ms=5)
    (limit,) = limits(report_of(measure(run)), max_remote=0.1)
    assert limit.state == "not measured"
    assert "incomplete" in limit.says


def test_what_was_not_measured_passes_no_limit() -> None:
    made = Synthetic()
    made.process(1, end=1000 * MS)
    (limit,) = limits(report_of(measure(made)), max_stall=0.10)
    assert limit.state == "not measured"
    assert "no training steps" in limit.says


def test_an_incomplete_number_may_break_a_limit_and_cannot_keep_one() -> None:
    report = job(30, folded=1000)
    assert report.verdict.storage.state == "incomplete"
    assert limits(report, max_storage=0.9)[0].state == "not measured"
    assert limits(report, max_storage=0.1)[0].state == "passed"


@pytest.mark.parametrize("lack", ["torn", "nameless"])
def test_waits_that_may_be_missing_pass_no_limit_and_are_no_verdict(
    slow: Report, lack: str
) -> None:
    run = Synthetic()
    name = None if lack == "nameless" else "data wait"
    for step in range(10):
        at = step * 100 * MS
        if lack == "nameless" or step == 0:
            run.span(name, at, at + 88 * MS, index=step)  # type: ignore[arg-type]
        run.step(at + 88 * MS, at + 100 * MS, step)
    run.process(1, end=1100 * MS, is_torn=lack == "torn")
    measures = measure(run)
    assert measures.stall_fraction.state == "incomplete"
    report = report_of(measures)
    (limit,) = limits(report, max_stall=0.10)
    assert limit.state == "not measured"
    why = "cut short" if lack == "torn" else "10 spans have no name"
    assert report.verdict.headline == "Training not fully seen"
    assert why in report.verdict.sentence
    states = {fact.key: fact.number.state for fact in report.stretches}
    assert states["data_wait_s"] == "not measured"
    assert states["checkpoint_block_s"] == "incomplete"
    assert {check.rule for check in report.checks if check.state == "fine"} <= {"X1", "X2"}
    assert any(check.state == "not judged" and why in check.says for check in report.checks)
    kept = baseline_limit(report, slow, 0.05)
    assert {limit.state for limit in kept if limit.key == "stall"} == {"not measured"}


def test_a_baseline_allows_its_tolerance(slow: Report, fast: Report) -> None:
    assert {limit.state for limit in baseline_limit(slow, slow, 0.0)} == {"kept"}
    assert {limit.state for limit in baseline_limit(fast, slow, 0.05)} == {"kept"}
    assert {limit.state for limit in baseline_limit(slow, fast, 0.05)} == {"passed"}
    assert baseline_limit(slow, fast, 0.5)[0].state == "kept"
    other = job(30, command="python other.py")
    assert baseline_limit(other, slow, 0.05)[0].state == "not measured"


# The commands


def say(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def write_run(folder: Path, wait_ms: int) -> Path:
    """Ten steps of 100 ms, of which wait_ms are a wait for the worker's read."""
    folder.mkdir()
    main, worker = Process(pid=100), Process(pid=101, ppid=100)
    for process in (main, worker):
        process.note("run-queue delay", "measured")
    worker.span("worker", 1, 3e9, 0, 1, 100)
    main.span("data wait", 50 * MS, 50 * MS, 0, 1)
    worker.span("fetch", 2, 95 * MS, 0, 1)
    for n in range(1, 11):
        start = n * 100 * MS
        main.step(n, start - 1, 100 * MS)
        main.span("data wait", start, wait_ms * MS, n, 1)
        worker.span("fetch", start + 1, (wait_ms - 1) * MS, n, 1)
        worker.call("read", start + 2, (wait_ms - 2) * MS, "/data/a", moved=100)
    for process in (main, worker):
        process.events[1].sort(key=lambda event: event.start)
        process.write(folder)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "good", 4)
    write_run(tmp_path / "bad", 40)
    none = Process(pid=7)
    none.call("read", MS, MS, "/data/a", moved=1)
    (tmp_path / "none").mkdir()
    none.write(tmp_path / "none")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["good", "--max-stall", "10"], 0, ""),
        (["good", "--max-stall", "10", "--max-storage", "5", "--max-remote", "0"], 0, ""),
        (["bad", "--max-stall", "10"], 1, "stall 40"),
        (["bad", "--baseline", "good"], 1, "stall 40"),
        (["good", "--baseline", "bad"], 0, ""),
        (["none", "--max-stall", "10"], 3, "not measured"),
        (["good"], 2, "nothing to check"),
        (["good", "--max-stall", "lots"], 2, "is no number of per cent"),
        (["good", "--max-stall", "nan"], 2, "is not between 0 and 100 %"),
        (["absent", "--max-stall", "1"], 2, "does not exist"),
    ],
)
def test_the_exit_status_is_for_ci(runs: Path, words: list[str], status: int, said: str) -> None:
    finished = say("check", *words, cwd=runs)
    assert finished.returncode == status, finished.stderr
    assert said in finished.stderr
    assert bool(finished.stderr) == bool(status)


def test_the_command_compares_runs_and_repetitions(runs: Path) -> None:
    finished = say("compare", "bad", "good", cwd=runs)
    assert finished.returncode == 0, finished.stderr
    assert "stall 40 % → 4 %" in finished.stdout or "stall 40 % > 4 %" in finished.stdout
    plain = json.loads(say("compare", "--a", "bad", "--b", "good", "--json", cwd=runs).stdout)
    assert plain["a"]["runs"] == ["bad"]
    if not (runs / "again").exists():
        shutil.copytree(runs / "good", runs / "again")
    several = json.loads(say("compare", "bad", "good", "again", "--json", cwd=runs).stdout)
    assert several["b"]["runs"] == ["good", "again"]
    twice = say("compare", "bad", "good", "good", cwd=runs)
    assert twice.returncode == 2
    assert "good stands twice on one side" in twice.stderr
    one = say("compare", "bad", cwd=runs)
    assert one.returncode == 2
    assert "two runs are compared" in one.stderr
