"""Causes of waits in no known loader beyond the calls of a reading thread: calls that are
not recorded, programs that start, uploads."""

import pytest

from penstock.explain.measures import Measures
from penstock.explain.report import Report, report_of
from test_unknown_loaders import MS, STEP, job, measured, own_batch, pool_of_processes, reported


def unseen_reads(cpu_ms: int, *, delay_ms: int = 0) -> Report:
    """Each batch is read for 2 ms by a call; of the other 48 ms the thread is on the CPU for
    cpu_ms, and for the rest asleep or without a CPU in no recorded call: io_uring, POSIX AIO."""
    run = own_batch(cpu_ms=cpu_ms)
    for number in range(40):
        start = number * STEP
        busy = (cpu_ms + 40) * MS  # 40 ms of computation
        run.span("step balance", start, start + STEP, index=number, a=busy, b=delay_ms * MS)
    return reported(run)


def test_time_off_the_cpu_in_no_recorded_call_is_no_decoding_of_a_batch() -> None:
    report = unseen_reads(5)
    shares = {part.key: part.share for part in report.wait}
    assert shares["not observed"] == pytest.approx(43 / 50, abs=0.02)
    assert shares["cpu"] == pytest.approx(5 / 50, abs=0.02)
    assert "on a CPU" not in report.verdict.sentence
    assert "for reasons not observed" in report.verdict.sentence
    gains = [finding.gain.value for finding in report.findings if finding.rule == "W2"]
    assert all(gain == pytest.approx(40 * 5e-3, rel=0.1) for gain in gains)


def test_a_batch_that_is_decoded_on_the_cpu_or_waits_for_one_is_observed() -> None:
    for report in (unseen_reads(58), unseen_reads(5, delay_ms=53)):
        shares = {part.key: part.share for part in report.wait}
        assert shares["cpu"] > 0.9
        assert shares.get("not observed", 0) < 0.05


def program_per_batch(*, origin: str = "run", starts_ms: int = 50) -> Measures:
    """Each batch comes from a pipe of a new program, which runs starts_ms after its fork."""
    run = job("poll", descriptor="pipe:")
    run.file("pipe:", path_class="system", kind="pipe")
    for number in range(40):
        start, child = number * STEP, 100 + number
        ran = start + MS + starts_ms * MS
        run.process(child, start=ran, end=start + 69 * MS, parent=1,
                    origin=origin, command="curl")  # fmt: skip
        run.call("fork", start, start + MS, path="")
        run.rows["events/00000"][-1] = (*run.rows["events/00000"][-1][:-2], 1000 + child, None)
        run.call("read", ran, start + 68 * MS, process=child, moved=100_000)
    return measured(run)


def test_a_program_that_is_started_for_each_batch_takes_its_start() -> None:
    measures = program_per_batch()
    assert measures.wait_share("program start") == pytest.approx(50 / 70, abs=0.03)
    assert measures.wait_share("read") == pytest.approx(17 / 70, abs=0.03)
    assert "on the start of programs" in report_of(measures).verdict.sentence


def test_a_forked_process_or_a_program_that_runs_already_starts_in_no_wait() -> None:
    assert program_per_batch(origin="fork").wait_s("program start") == 0
    assert program_per_batch(starts_ms=0).wait_share("program start") < 0.03
    assert pool_of_processes(reads=True).wait_s("program start") == 0


@pytest.mark.parametrize(
    ("duration_ms", "sent", "received", "is_upload"),
    [(70, 4_000_000, 2, True), (10, 4_000_000, 2, False), (70, 300, 300, False)],
    ids=["uploads", "short ones", "requests"],
)
def test_uploads_are_named_where_the_training_waited_for_no_known_data(
    duration_ms: int, sent: int, received: int, is_upload: bool
) -> None:
    """PUT of a checkpoint by the training thread: whether it is a save is not known."""
    run = job("receive", descriptor="socket:store.example:443", received=2)
    for number in range(40):
        run.requested(
            "store.example:443", number * STEP + MS, duration_ms * MS, method="PUT",
            operation="PUT", sent_bytes=sent, received_bytes=received,
        )  # fmt: skip
    verdict = reported(run).verdict
    assert verdict.level == "unknown"
    assert ("for uploads: 40 requests sent 160 MB in 2.80 s" in verdict.sentence) == is_upload


def by_eventfd(kind: str = "eventfd", *, write_ms: float = 0) -> Report:
    """Each batch comes when a read of an eventfd or timerfd returns, after 60 ms."""
    run = job(blocked_ms=0.01)
    path = f"anon_inode:[{kind}]"
    run.file(path, path_class="system", kind="other")
    for number in range(40):
        start = number * STEP
        run.call("read", start + 2 * MS, start + 62 * MS, path=path, moved=8)
        if write_ms:  # wakes a thread of a library, and loses the CPU
            run.call(
                "write", start + 63 * MS, start + int((63 + write_ms) * MS), path=path, moved=8
            )
    return reported(run)


@pytest.mark.parametrize("kind", ["eventfd", "timerfd"])
def test_a_read_that_another_thread_or_a_clock_ends_is_no_wait_on_storage(kind: str) -> None:
    report = by_eventfd(kind)
    assert report.verdict.headline == "NOT JUDGED"
    assert report.verdict.stall_least.value == pytest.approx(0, abs=0.01)
    assert report.verdict.stall_most.value == pytest.approx(0.8, abs=0.02)
    assert not {finding.rule for finding in report.findings} & {"D1", "D2", "D6"}


def test_a_write_that_wakes_a_thread_is_no_file_call_of_the_training_thread() -> None:
    report = by_eventfd(write_ms=9)
    assert report.verdict.stall_least.value == pytest.approx(0, abs=0.01)
    assert "file calls of the training thread" not in {
        segment.label for segment in report.wall if segment.share > 0.01
    }
