"""Calls on files that failed, and saves that are no checkpoint: told by name, and counted apart."""

import errno
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.failures import error_name
from penstock.explain.findings import Check, Finding, judge
from penstock.explain.measures import Measures, measure
from penstock.explain.report import Report, report_of
from penstock.words import show
from synthetic import Synthetic

MS = 1_000_000


def said(measures: Measures, rule: str) -> Finding | Check:
    judgement = judge(measures)
    (one,) = [o for o in (*judgement.findings, *judgement.checks) if o.rule == rule]
    return one


def loop(saves: int = 0, bad: int = 0, **more: Any) -> Synthetic:
    """Ten steps of 100 ms; so many saves, the last of them bad ones."""
    run = Synthetic()
    run.process(1, end=2000 * MS, **more)
    run.file("/out/a.pt", path_class="output")
    for step in range(10):
        run.step(step * 100 * MS, (step + 1) * 100 * MS, step)
    for save in range(saves):
        begin = (save * 100 + 20) * MS
        is_bad = save >= saves - bad
        run.span("checkpoint", begin, begin + 10 * MS, index=save, b=int(is_bad), a=28 * is_bad)
        run.call("write", begin, begin + 5 * MS, path="/out/a.pt", moved=1000)
    return run


# --- calls ---------------------------------------------------------------------------------------


def test_an_error_is_told_by_name_calls_path_and_times() -> None:
    run = loop()
    for at in (300, 700, 900):
        run.call("write", at * MS, (at + 1) * MS, path="/out/a.pt", errno=errno.ENOSPC)
    run.call("read", 500 * MS, 501 * MS, path="/data/a", errno=errno.EIO)
    finding = said(measure(run), "F1")
    assert isinstance(finding, Finding)
    assert finding.evidence == (
        "ENOSPC (no space left on device): write /out/a.pt, 3 times, first at 300 ms, last at 900 "
        "ms",
        "EIO (input/output error): read /data/a, at 500 ms",
    )
    assert "file system is full" in finding.remedies[0].says


@pytest.mark.parametrize(
    ("op", "number", "path", "path_class"),
    [
        ("open", errno.ENOENT, "/data/a", "data"),
        ("stat", errno.ENOENT, "/data/a", "data"),
        ("mkdir", errno.EEXIST, "/out", "output"),
        ("read", errno.EAGAIN, "/data/a", "data"),
        ("open", errno.EACCES, "/usr/lib/x.so", "library"),
        ("open", errno.EACCES, "/home/me/.cache/x", "data"),
        ("access", errno.EACCES, "/data/a", "data"),
        ("fsync", errno.EINVAL, "/data/a", "data"),
        ("rename", errno.EXDEV, "/out/a", "output"),
        ("read", errno.EIO, "/proc/self/mem", "system"),
    ],
)
def test_what_fails_in_any_program_is_no_finding(
    op: str, number: int, path: str, path_class: str
) -> None:
    run = loop()
    run.file(path, path_class=path_class)
    run.call(op, 300 * MS, 301 * MS, path=path, errno=number)
    check = said(measure(run), "F1")
    assert isinstance(check, Check)
    assert check.state == "fine"
    assert check.says == f"calls that fail in any program: {error_name(number)} 1"


@pytest.mark.parametrize(
    "number",
    [
        *(errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EDQUOT, errno.ETIMEDOUT, errno.EMFILE),
        *(errno.EACCES, errno.EROFS, errno.ENOTCONN, errno.ESHUTDOWN, errno.EFBIG),
    ],
)
def test_what_storage_space_and_rights_deny_is_a_finding(number: int) -> None:
    run = loop()
    run.call("open", 300 * MS, 301 * MS, path="/data/a", errno=number)
    assert isinstance(said(measure(run), "F1"), Finding)


def test_a_socket_that_times_out_is_no_file_that_failed() -> None:
    run = loop()
    run.file("socket:", path_class="system", kind="socket")
    run.call("read", 300 * MS, 301 * MS, path="socket:", errno=errno.ETIMEDOUT)
    assert isinstance(said(measure(run), "F1"), Check)


def test_failures_come_before_what_is_slow() -> None:
    run = loop(saves=5, bad=1)
    run.call("write", 300 * MS, 301 * MS, path="/out/a.pt", errno=errno.ENOSPC)
    rules = [finding.rule for finding in judge(measure(run)).findings]
    assert set(rules[:2]) == {"C5", "F1"}


def test_a_full_disk_is_named_with_its_path(
    recorded: Callable[..., Any], small_disk: Callable[..., Any]
) -> None:
    with small_disk(1 << 20) as disk:
        run = recorded(
            """
            import errno, os, sys
            fd = os.open(sys.argv[1] + "/model", os.O_CREAT | os.O_WRONLY)
            failed = 0
            for _ in range(64):
                try:
                    os.write(fd, bytes(65536))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    failed += 1
            print(failed)
            """,
            args=(disk,),
        )
        finding = said(measure(run), "F1")
    assert isinstance(finding, Finding)
    ((calls,),) = run.sql("SELECT count(*) FROM events WHERE errno = 28")
    assert calls >= 40
    assert finding.evidence[0].startswith(
        f"ENOSPC (no space left on device): write {disk}/model, {calls} times, first at "
    )


def test_a_job_that_ended_after_a_failed_call_is_told_which(recorded: Callable[..., Any]) -> None:
    run = recorded("open('train/000.npy')", status=1)
    (incident,) = report_of(measure(run)).incidents
    assert "its latest call that failed: open /" in incident.sentence
    assert "/train/000.npy (ENOENT), " in incident.sentence


# --- saves ---------------------------------------------------------------------------------------


def reported(run: Synthetic) -> Report:
    return report_of(measure(run))


def fact(report: Report, key: str) -> str:
    return next(fact.remark for fact in report.stretches if fact.key == key)


def test_saves_that_failed_are_counted_apart_everywhere() -> None:
    report = reported(loop(saves=5, bad=2))
    assert fact(report, "checkpoint_block_s") == "3 checkpoints, 2 failed"
    table = report.table("checkpoints")
    place = [column.key for column in table.columns].index("ended")
    assert [row[place] for row in table.rows] == [None] * 3 + ["failed, ENOSPC"] * 2
    measures = measure(loop(saves=5, bad=2))
    finding = said(measures, "C5")
    assert isinstance(finding, Finding)
    assert finding.evidence[0] == "2 of 5 saves are no checkpoints"
    assert finding.evidence[1] == (
        f"the save at {show(0.32, 's')} failed with ENOSPC after 10.0 ms and 1.00 kB: /out/a.pt"
    )
    blocking = said(measures, "C1")
    assert isinstance(blocking, Finding)
    assert blocking.evidence[0].startswith("3 saves of 10.0 ms")
    assert "the time of 2 failed saves is in it" in blocking.evidence


def test_saves_that_ended_well_are_fine() -> None:
    check = said(measure(loop(saves=3)), "C5")
    assert isinstance(check, Check)
    assert (check.state, check.says) == ("fine", "no save failed")


@pytest.mark.parametrize(
    ("state", "is_bad"), [("killed", True), ("exited", True), ("running", False)]
)
def test_a_save_whose_process_ended_is_cut_off_and_one_under_way_is_not(
    state: str, is_bad: bool
) -> None:
    run = loop(state=state)
    run.span("checkpoint", 1500 * MS, None, index=0)
    assert isinstance(said(measure(run), "C5"), Finding) == is_bad


def test_a_save_that_met_an_error_and_ended_well_counts_and_says_so() -> None:
    run = loop(saves=1)
    run.call("write", 22 * MS, 23 * MS, path="/out/a.pt", errno=errno.EIO)
    report = reported(run)
    assert fact(report, "checkpoint_block_s") == "1 checkpoint"
    table = report.table("checkpoints")
    assert "well, after EIO" in table.rows[0]


def test_a_save_that_failed_in_the_background_is_told_once() -> None:
    run = loop(saves=2)
    run.span("save failed", 900 * MS, 900 * MS + 1, a=5, b=1)
    finding = said(measure(run), "C5")
    assert isinstance(finding, Finding)
    assert finding.evidence == (
        "1 of 2 saves is no checkpoint",
        "a save that had returned failed with EIO; the job learned it at 900 ms",
    )


def test_a_restart_that_failed_is_no_slow_one() -> None:
    run = loop()
    run.span("restore", 0, 1, b=1, a=2)
    measures = measure(run)
    assert [load.is_failed for load in measures.restores] == [True]
    check = said(measures, "C4")
    assert isinstance(check, Check)
    assert check.says == "no checkpoint was loaded"


SAVING = """
import errno, sys
import torch
import torch.distributed.checkpoint as dcp
import safetensors.torch
import penstock

class Unpicklable:
    def __reduce__(self):
        raise ValueError("in the middle")

good, full = sys.argv[1:]
state = {"w": torch.zeros(1 << 20)}

def must_fail(save):
    try:
        save()
    except BaseException:  # as torch's CheckpointException is
        return
    raise SystemExit(f"{save} did not fail")

def by_hand():
    with penstock.span("checkpoint"), open(good + "/hand", "wb") as file:
        file.write(b"half")
        raise OSError(errno.ESTALE, "gone")

torch.save(state, good + "/a.pt")
safetensors.torch.save_file(state, good + "/a.safetensors")
must_fail(lambda: torch.save({"w": torch.zeros(9), "x": Unpicklable()}, good + "/b.pt"))
must_fail(lambda: torch.save(state, full + "/c.pt"))
must_fail(lambda: safetensors.torch.save_file(state, full + "/d.safetensors"))
must_fail(by_hand)
must_fail(lambda: dcp.save({"x": Unpicklable()}, checkpoint_id=good + "/e"))
must_fail(lambda: dcp.async_save({"x": Unpicklable()}, checkpoint_id=good + "/f").result())
"""


def test_each_way_to_save_that_raises_is_a_failed_save(
    recorded: Callable[..., Any], small_disk: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "good").mkdir()
    with small_disk(1 << 20) as disk:
        run = recorded(SAVING, args=(tmp_path / "good", disk))
        measures = measure(run)
    outcomes = [(save.outcome, save.errno) for save in measures.checkpoints]
    assert outcomes[:2] == [(None, None)] * 2
    # torch's own error has no number; the write that failed has.
    assert outcomes[2] == ("failed", None)
    assert outcomes[3] == ("failed", errno.ENOSPC)
    assert outcomes[4][0] == "failed"
    assert outcomes[5] == ("failed", errno.ESTALE)
    assert outcomes[6][0] == "failed"
    failed = sum(outcome is not None for outcome, _ in outcomes) + len(measures.late_failures)
    assert failed >= 6
    finding = said(measures, "C5")
    assert isinstance(finding, Finding)


def test_a_limit_of_file_sizes_is_an_error_too(recorded: Callable[..., Any]) -> None:
    run = recorded(
        f"""
        import os, resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, {resource.RLIM_INFINITY}))
        fd = os.open("out", os.O_CREAT | os.O_WRONLY)
        os.write(fd, bytes(1000))
        try:
            os.write(fd, bytes(1000))
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        """
    )
    finding = said(measure(run), "F1")
    assert isinstance(finding, Finding)
    assert finding.evidence[0].startswith("EFBIG (file too large): write /")
