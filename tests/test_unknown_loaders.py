"""Data waits that no loader told, found in what blocked the training thread, explained by who
ended them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from penstock.explain.findings import reads
from penstock.explain.measures import Measures, measure
from penstock.explain.measures.number import Number
from penstock.explain.report import Report, report_of
from penstock.views import terminal
from synthetic import MS, Synthetic

STEP = 100 * MS
TORCH = "/usr/lib/python3/site-packages/torch/lib/libtorch_cpu.so"
OPENMP = "/usr/lib/libgomp.so.1"
CUDA = "/usr/lib/libcudart.so.12"
READER = 7  # a thread of the training process


def job(
    op: str = "sem_wait",
    *,
    blocked_ms: float = 70,
    at_ms: float = 0,
    steps: int = 40,
    has_stretches: bool = True,
    is_loader: bool = False,
    cpu_ms: float = 0.5,
    **of_the_wait: object,
) -> Synthetic:
    """Steps of 100 ms whose first 80 ms are an input stretch; at at_ms the thread blocks."""
    run = Synthetic()
    run.process(1, end=steps * STEP + MS)
    for number in range(steps):
        start = number * STEP
        if is_loader:
            run.wait(start, start + MS, number)
        if has_stretches:
            run.span("input stretch", start, start + 80 * MS, index=0, a=1, b=int(cpu_ms * MS))
        begin = start + MS + int(at_ms * MS)
        run.blocked(op, begin, begin + int(blocked_ms * MS), **of_the_wait)  # type: ignore[arg-type]
        run.step(start, start + STEP, number)
    return run


def measured(run: Synthetic) -> Measures:
    return measure(run)


def reported(run: Synthetic) -> Report:
    return report_of(measure(run))


def read_by(run: Synthetic, thread: int, *, ms: float = 60, steps: int = 40) -> None:
    """What thread READER reads during each wait."""
    for number in range(steps):
        start = number * STEP + 5 * MS
        run.call("read", start, start + int(ms * MS), thread=thread, moved=100_000)


def stand_still(run: Synthetic, thread: int, *, from_ms: float, steps: int = 40) -> None:
    """The thread has nothing to do from there to the end of each step."""
    for number in range(steps):
        start = number * STEP
        run.blocked("sem_wait", start + int(from_ms * MS), start + 105 * MS, thread=thread)


def answered(run: Synthetic, n_bytes: int) -> None:
    """Add an answer of n_bytes from the network to thread READER during each wait."""
    for number in range(40):
        start = number * STEP + 5 * MS
        run.blocked(
            "receive", start, start + 60 * MS, thread=READER, descriptor="socket:", received=n_bytes
        )


def test_a_wait_for_a_thread_that_reads_waits_on_storage() -> None:
    run = job(waker=READER)
    read_by(run, READER)
    measures = measured(run)
    assert measures.training.data_wait_s == pytest.approx(40 * 0.07, rel=0.03)
    assert measures.wait_share("read") == pytest.approx(60 / 70, abs=0.02)
    assert measures.wait_share("cpu") == pytest.approx(10 / 70, abs=0.02)
    assert report_of(measures).verdict.headline == "HIGHLY I/O BOUND"


def test_workers_of_no_known_loader_are_not_counted() -> None:
    """Nor is a DataLoader proposed to a program that has none."""
    run = job(waker=READER)
    read_by(run, READER)
    report = reported(run)
    assert "W1" not in {finding.rule for finding in report.findings}
    assert next(check for check in report.checks if check.rule == "W1").state == "not judged"
    told = " ".join(one.says for finding in report.findings for one in finding.remedies)
    assert "DataLoader" not in told


def test_of_several_threads_the_one_that_ended_the_wait_counts() -> None:
    run = job(waker=READER + 1)
    read_by(run, READER)
    read_by(run, READER + 1, ms=0.02)  # as fast as from memory
    measures = measured(run)
    assert measures.wait_s("read") < 0.01
    assert measures.wait_share("cpu") == pytest.approx(1, abs=0.01)


def test_a_wait_of_which_nobody_knows_who_ended_it_is_of_all_threads() -> None:
    run = job()
    read_by(run, READER)
    stand_still(run, READER, from_ms=65)
    measures = measured(run)
    assert measures.wait_share("read") == pytest.approx(60 / 70, abs=0.02)
    assert measures.wait_share("not observed") == pytest.approx(10 / 70, abs=0.02)


def test_a_wait_for_a_thread_that_waits_for_a_socket_waits_on_the_network() -> None:
    run = job(waker=READER)
    answered(run, 16_000)
    report = reported(run)
    assert report.verdict.headline == "HIGHLY INPUT BOUND, waits on the network"
    assert {part.key for part in report.wait} == {"network", "cpu"}
    assert "network requests" in [gap.what for gap in report.gaps]


@pytest.mark.parametrize(
    ("descriptor", "errno", "ends_ms", "part"),
    [
        ("socket:", 0, 65, "network"),
        ("socket:", 110, 65, "not observed"),  # a monitor that asks again and again
        ("socket:", 0, 95, "not observed"),  # a server that waits for its next request
        ("socket:unix", 0, 65, "not observed"),  # no network
    ],
)
def test_of_all_threads_one_that_got_an_answer_meanwhile_waited_for_the_network(
    descriptor: str, errno: int, ends_ms: int, part: str
) -> None:
    run = job()
    for number in range(40):
        for thread in (READER, READER + 1):  # at the same time
            run.blocked(
                "receive",
                number * STEP - 20 * MS,
                number * STEP + ends_ms * MS,
                thread=thread,
                descriptor=descriptor,
                received=16_000,
                errno=errno,
            )
    measures = measured(run)
    assert measures.wait_share(part) >= 64 / 70 - 0.02  # after that a thread may decode it
    assert sum(measures.wait_parts.values()) == pytest.approx(measures.training.data_wait_s)


@pytest.mark.parametrize(
    ("peers", "is_loopback", "share"),
    [
        ((2,), True, 0),
        ((2, None), True, 0),  # the other process was killed, and its row is missing
        ((None,), True, 64 / 70),  # a server on this host that is no process of the job
        ((2, None), False, 64 / 70),  # several hosts behind an address: not known who answered
    ],
)
def test_a_thread_that_waits_for_a_process_of_the_job_does_not_wait_for_the_network(
    peers: tuple[int | None, ...], is_loopback: bool, share: float
) -> None:
    """The batches come from a pool of processes that call each other by TCP, as in Ray."""
    run = job()
    run.process(2, end=40 * STEP, parent=1, command="worker")
    for peer in peers:
        run.connected(
            "192.0.2.2:5000", received_bytes=640_000, peer_process=peer, is_loopback=is_loopback
        )
    for number in range(40):
        start = number * STEP + 2 * MS
        run.blocked(
            "receive",
            start,
            start + 64 * MS,
            thread=READER,
            descriptor="socket:192.0.2.2:5000",
            received=16_000,
        )
    assert measured(run).wait_share("network") == pytest.approx(share, abs=0.03)


def test_a_wait_for_a_socket_of_this_host_s_processes_is_none_on_the_network() -> None:
    measures = measured(job("receive", descriptor="socket:unix"))
    assert measures.training.data_wait_s == pytest.approx(40 * 0.07, rel=0.03)
    assert measures.wait_s("network") == 0


def test_storage_is_no_level_of_its_own_where_much_of_the_wait_was_not_seen() -> None:
    """16 of 30 points are seen to be storage: what is not seen may be storage too."""
    run = job(blocked_ms=30)
    read_by(run, READER, ms=16)
    stand_still(run, READER, from_ms=21)
    verdict = report_of(measured(run)).verdict
    assert verdict.headline == "HIGHLY INPUT BOUND, at least moderately I/O bound"
    whole = job(blocked_ms=30)
    read_by(whole, READER, ms=25)
    assert report_of(measured(whole)).verdict.headline == "HIGHLY I/O BOUND"


def assert_is_only_a_bound(run: Synthetic, share: float = 0.7) -> None:
    measures = measured(run)
    assert measures.training.data_wait_s in (None, 0) or measures.training.waits
    report = report_of(measures)
    assert report.verdict.level == "unknown"
    assert report.verdict.stall_most.value == pytest.approx(share, abs=0.12)


@pytest.mark.parametrize("received", [None, 150])
def test_an_answer_without_data_may_be_to_what_was_sent(received: int | None) -> None:
    """The training posts metrics to a server."""
    assert_is_only_a_bound(job("receive", descriptor="socket:", received=received))


@pytest.mark.parametrize(("sent", "level"), [(300, "highly"), (8_000, "unknown")])
def test_an_answer_that_is_smaller_than_what_was_sent_for_it_is_no_data(
    sent: int, level: str
) -> None:
    """OpenSSL writes and reads its socket: a request for a batch, or metrics."""
    run = job("poll", descriptor="socket:")
    for number in range(40):
        start = number * STEP
        run.call("write", start, start + MS // 2, path="socket:", moved=sent)
        run.call("read", start + 72 * MS, start + 73 * MS, path="socket:", moved=4_096)
    assert reported(run).verdict.level == level


@pytest.mark.parametrize(
    ("wait_ms", "read_ms", "headline"),
    [
        (5.2, 4.8, "MODERATELY I/O BOUND"),
        (5.8, 4.8, "MODERATELY INPUT BOUND, not I/O bound"),
        (21, 19.5, "HIGHLY I/O BOUND"),
    ],
)
def test_a_wait_that_is_nearly_all_storage_has_no_other_cause_at_a_limit(
    wait_ms: float, read_ms: float, headline: str
) -> None:
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start, end = number * STEP, number * STEP + int(wait_ms * MS)
        run.wait(start, end, number)
        run.fetch(start, end, number, process=1, cpu=0, delay=0)
        run.call("read", start, start + int(read_ms * MS), moved=100_000)
        run.step(start, start + STEP, number)
    assert reported(run).verdict.headline == headline


def test_computing_in_another_thread_that_takes_in_no_data_is_not_decoding() -> None:
    """The thread may run the forward pass or an evaluation."""
    assert_is_only_a_bound(job(waker=READER))


@pytest.mark.parametrize("is_loader", [False, True])
def test_a_thread_that_writes_takes_from_a_queue_and_gives_none(is_loader: bool) -> None:
    """The training puts metrics into a full queue."""
    run = job(waker=READER, is_loader=is_loader)
    run.file("/runs/log", path_class="output")
    for number in range(40):
        start = number * STEP + 5 * MS
        run.call("write", start, start + 60 * MS, path="/runs/log", thread=READER, moved=100_000)
    assert_is_only_a_bound(run)


def test_beside_a_known_loader_a_thread_that_sends_is_no_second_one() -> None:
    """The training waits for the upload of the last checkpoint."""
    run = job(waker=READER, is_loader=True)
    answered(run, 150)
    assert_is_only_a_bound(run)


def test_beside_a_known_loader_a_thread_that_reads_is_a_second_one() -> None:
    run = job(waker=READER, is_loader=True)
    read_by(run, READER)
    assert report_of(measured(run)).verdict.headline == "HIGHLY I/O BOUND"


def pool_of_processes(*, reads: bool) -> Measures:
    """A thread reads results of a child from a pipe, and wakes the training thread."""
    run = job(waker=READER)
    run.file("pipe:", path_class="system", kind="pipe")
    run.process(2, end=40 * STEP, parent=1, command="child")
    for number in range(40):
        start = number * STEP
        end = start + 70 * MS
        run.call("read", start, end, path="pipe:", thread=READER, moved=16_000)
        if reads:
            run.call("read", start + 2 * MS, start + 66 * MS, process=2, moved=100_000)
    return measured(run)


def test_a_thread_that_waits_for_a_child_hands_on_what_the_child_made() -> None:
    measures = pool_of_processes(reads=True)
    assert measures.wait_share("read") == pytest.approx(64 / 70, abs=0.03)
    assert report_of(measures).verdict.headline == "HIGHLY I/O BOUND"


@pytest.mark.parametrize(
    ("given", "level"), [(300, "highly"), (100_000, "unknown")], ids=["request", "work"]
)
@pytest.mark.parametrize("by", ["thread", "itself"])
def test_what_the_training_gives_to_a_child_is_no_data(given: int, level: str, by: str) -> None:
    """A pool of processes renders what the training logs, or reads what the training asks for."""
    run = job("poll", descriptor="pipe:") if by == "itself" else job(waker=READER)
    run.process(2, parent=1, end=40 * STEP)
    run.file("pipe:", path_class="system", kind="pipe")
    for number in range(40):
        start = number * STEP + MS
        run.call("write", start - MS, start - MS // 2, path="pipe:", moved=given)
        if given > 1_000:
            run.call("read", start, start + MS, path="pipe:", process=2, moved=given)
        else:
            run.call("read", start, start + MS, process=2, moved=100_000)
        if by == "thread":
            run.call("read", start, start + 69 * MS, path="pipe:", thread=READER, moved=10)
    assert reported(run).verdict.level == level


def test_where_the_child_was_not_seen_to_read_storage_is_not_denied() -> None:
    measures = pool_of_processes(reads=False)
    assert measures.wait_share("not observed") == pytest.approx(1, abs=0.03)
    verdict = report_of(measures).verdict
    assert (verdict.level, verdict.storage.state) == ("highly", "incomplete")


@pytest.mark.parametrize("op", ["poll", "receive"])
def test_the_training_thread_s_own_wait_for_a_socket_is_a_wait_on_the_network(op: str) -> None:
    measures = measured(job(op, descriptor="socket:", received=16_000))
    assert measures.wait_share("network") == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("op", "by"),
    [
        ("futex", OPENMP),
        ("cond_wait", TORCH),
        ("epoll", TORCH),
        ("sync", CUDA),
        ("collective", "/usr/lib/libmpi.so.40"),
        ("cond_wait", "/usr/lib/libpython3.11.so.1.0"),
    ],
)
def test_waits_of_a_computation_are_no_data_wait(op: str, by: str) -> None:
    measures = measured(job(op, by=by))
    assert measures.training.data_wait_s in (None, 0)
    assert measures.training.unfed_s == pytest.approx(40 * 0.01, rel=0.05)  # of its input stretches


@pytest.mark.parametrize(
    ("op", "by", "key"),
    [
        ("sync", CUDA, "accelerator"),
        ("collective", "/usr/lib/libmpi.so.40", "exchange"),
        ("epoll", TORCH, "exchange"),
    ],
)
def test_waits_of_a_computation_have_a_segment_of_their_own(op: str, by: str, key: str) -> None:
    shares = {segment.key: segment.share for segment in reported(job(op, by=by)).wall}
    assert shares[key] == pytest.approx(0.7, abs=0.02)


def test_waits_of_a_computation_for_the_interpreter_lock_have_a_segment_of_their_own() -> None:
    report = reported(job("cond_wait", at_ms=79, blocked_ms=15, is_loader=True))
    shares = {segment.key: segment.share for segment in report.wall}
    assert shares["interpreter lock"] == pytest.approx(0.15, abs=0.02)


def exchanging(waker: int) -> dict[str, float | None]:
    """The segments of a job whose training thread waits for threads of PyTorch.

    Thread 8 polls the sockets of the exchange; it wakes thread 9, which runs an operation of the
    exchange; thread 10 computes.  waker: the thread that ends the waits of the training thread.
    """
    run = job("cond_wait", by=TORCH, waker=waker)
    for number in range(40):
        start, end = number * STEP, number * STEP + 60 * MS
        run.blocked("epoll", start, end, by=TORCH, thread=8)
        run.blocked("cond_wait", start, end, by=TORCH, thread=9, waker=8)
        run.blocked("cond_wait", start, end, by=TORCH, thread=10, waker=1)
    return {segment.key: segment.share for segment in reported(run).wall}


@pytest.mark.parametrize("waker", [8, 9])
def test_a_wait_that_the_exchange_of_gloo_ends_is_for_other_ranks(waker: int) -> None:
    assert exchanging(waker)["exchange"] == pytest.approx(0.7, abs=0.02)


def test_a_wait_for_a_thread_of_pytorch_that_computes_is_not_for_other_ranks() -> None:
    assert "exchange" not in exchanging(10)


def test_a_wait_inside_a_computation_may_be_a_data_wait_and_is_not_judged() -> None:
    """DataParallel joins threads inside a step; a GAN may fetch there."""
    run = job(at_ms=79, blocked_ms=15, waker=READER)
    measures = measured(run)
    assert measures.training.data_wait_s in (None, 0)
    assert measures.training.maybe_s == pytest.approx(40 * 0.015, rel=0.03)
    assert report_of(measures).verdict.level == "unknown"


def test_a_wait_inside_the_computation_of_a_step_with_a_loader_is_none() -> None:
    measures = measured(job(at_ms=79, blocked_ms=15, waker=READER, is_loader=True))
    assert measures.training.maybe_s == 0
    assert measures.unsure == ""


def between(began: int, ended: int) -> Measures:
    """A program that reads 100 kB from a pipe in each step, between two events of torch."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    run.file("pipe:", path_class="system", kind="pipe")
    for number in range(40):
        start = number * STEP
        run.span("input stretch", start, start + MS, index=0, a=1, b=MS // 2)
        run.span("input stretch", start + 30 * MS, start + 90 * MS, index=began, a=ended, b=MS // 2)
        run.call("read", start + 35 * MS, start + 85 * MS, path="pipe:", moved=100_000)
        run.step(start, start + STEP, number)
    return measured(run)


def test_what_is_exchanged_between_backward_pass_and_optimizer_is_no_data_wait() -> None:
    measures = between(began=2, ended=5)
    assert measures.training.data_wait_s in (None, 0)
    assert measures.unsure == ""
    assert report_of(measures).verdict.level == "not"


def after_backward(op: str, **of_the_wait: object) -> Report:
    """A job that blocks for half of each step between the backward pass and the optimizer."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start = number * STEP
        run.span("input stretch", start, start + MS, index=0, a=1, b=MS // 2)
        run.span("input stretch", start + 30 * MS, start + 90 * MS, index=2, a=5, b=MS // 2)
        run.blocked(op, start + 35 * MS, start + 85 * MS, **of_the_wait)  # type: ignore[arg-type]
        run.step(start, start + STEP, number)
    return reported(run)


def test_what_the_network_sends_between_backward_pass_and_optimizer_may_be_data() -> None:
    """The received bytes may be the next batch or a server's weights: there is no level."""
    report = after_backward("receive", descriptor="socket:10.0.0.1:80", received=16_000)
    assert report.verdict.level == "unknown"
    assert report.verdict.stall_most.value == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("op", "of_the_wait"),
    [
        ("receive", {"descriptor": "socket:10.0.0.1:80", "received": 0}),  # as many bytes were sent
        ("sem_wait", {}),
    ],
)
def test_a_wait_between_backward_pass_and_optimizer_is_no_computation(
    op: str, of_the_wait: dict[str, object]
) -> None:
    report = after_backward(op, **of_the_wait)
    assert report.verdict.level == "not"
    shares = {segment.key: segment.share for segment in report.wall}
    assert shares["after backward"] == pytest.approx(0.5, abs=0.03)
    assert shares["compute"] == pytest.approx(0.5, abs=0.03)


def test_the_bar_repeats_the_time_without_a_cpu_that_the_verdict_states() -> None:
    """A part of the time without a CPU is in a segment of unknown use."""
    measures = measured(job("sleep"))  # 80 % of unknown use
    wall_s = measures.training.wall_s or 0.0
    report = report_of(replace(measures, standing={"no CPU": 0.6 * wall_s}))
    assert "for 60 % the training thread was ready but had no CPU" in report.verdict.sentence
    assert "quota" not in report.verdict.sentence
    (label,) = (segment.label for segment in report.wall if segment.key == "no CPU")
    assert label == "ready without a CPU (60 % in all)"


@pytest.mark.parametrize(("stopped_s", "is_named"), [(0.9, True), (0.01, False), (None, False)])
def test_a_quota_that_stopped_the_job_is_named_with_the_time_without_a_cpu(
    stopped_s: float | None, is_named: bool
) -> None:
    measures = measured(job(is_loader=True))
    wall_s = measures.training.wall_s or 0.0
    machine = replace(measures.machine, throttled=81, throttled_s=stopped_s, quota_cpus=0.25)
    slow = replace(measures, standing={"no CPU": 0.6 * wall_s}, machine=machine)
    told = "in the whole run the CPU quota stopped the job 81 times, 900 ms"
    assert (told in report_of(slow).verdict.sentence) == is_named
    fast = replace(slow, standing={"no CPU": 0.01 * wall_s})
    assert "quota" not in report_of(fast).verdict.sentence


def test_what_is_read_between_backward_and_forward_pass_is_a_data_wait() -> None:
    """The training accumulates gradients over several batches, and decodes each for 5 ms."""
    assert report_of(between(began=2, ended=1)).verdict.stall.value == pytest.approx(0.55, abs=0.01)


def test_a_sleep_in_an_input_stretch_may_wait_for_data() -> None:
    report = reported(job("sleep"))
    assert report.verdict.level == "unknown"
    assert report.verdict.stall_most.value == pytest.approx(0.8, abs=0.02)


def test_a_sleep_between_a_loader_s_batch_and_the_computation_may_wait_for_data() -> None:
    """The loader yields keys, and the loop waits for the named data; or the loop cools down."""
    report = reported(job("sleep", is_loader=True))
    assert report.verdict.level == "unknown"
    assert report.verdict.stall_most.value == pytest.approx(0.71, abs=0.02)


def test_a_sleep_inside_the_computation_of_a_step_with_a_loader_is_no_data_wait() -> None:
    assert reported(job("sleep", at_ms=79, blocked_ms=15, is_loader=True)).verdict.level == "not"


def fed(cpu_ms: float, *, began: int = 0, ended: int = 1, dropped_ms: float = 0) -> Report:
    """A loader that answers at once, and a loop that uses the CPU before the computation, at first
    to unmap the batch before."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start = number * STEP
        end, cpu = start + int((1 + cpu_ms) * MS), int(cpu_ms * MS)
        run.wait(start, start + MS, number)
        run.span("input stretch", start, end, index=began, a=ended, b=cpu)
        if dropped_ms:
            begin = start + int(1.1 * MS)
            run.call("munmap", begin, begin + int(dropped_ms * MS), path=None)
        run.step(start, start + STEP, number)
    return reported(run)


def test_memory_that_goes_back_to_the_kernel_after_a_batch_is_no_data_wait() -> None:
    """Worker processes send a batch in shared memory; the loop drops the batch before."""
    report = fed(8, dropped_ms=7.5)
    assert (report.verdict.level, report.verdict.stall.state) == ("not", "derived")
    assert fed(20, dropped_ms=7.5).verdict.level == "unknown"


def test_cpu_time_between_a_loader_s_batch_and_the_computation_may_make_a_batch() -> None:
    verdict = fed(50).verdict
    assert verdict.level == "unknown"
    assert verdict.stall_most.value == pytest.approx(0.5, abs=0.02)
    assert "used the CPU between the loader's batch and the computation" in verdict.sentence


@pytest.mark.parametrize(
    ("cpu_ms", "began", "ended"),
    [
        (0.9, 0, 1),  # the loop moves a batch and logs a line
        (50, 3, 1),  # an evaluation without a recorded end
        (50, 0, 4),  # a forward pass without a module: only the backward pass is recorded
        (50, 2, 5),  # gradient clipping between the backward pass and the optimizer
    ],
)
def test_little_cpu_time_or_a_computation_after_a_loader_s_batch_is_no_data_wait(
    cpu_ms: float, began: int, ended: int
) -> None:
    report = fed(cpu_ms, began=began, ended=ended)
    assert (report.verdict.level, report.verdict.stall.state) == ("not", "derived")


def test_waiting_for_a_thread_that_saves_is_no_data_wait() -> None:
    run = job(waker=READER)
    run.span("checkpoint", 5 * MS, 30 * MS, thread=READER, index=0)
    report = reported(run)
    shares = {segment.key: segment.share for segment in report.wall}
    assert shares["save"] == pytest.approx(0.7, abs=0.02)


def saved_by_a_thread(ms: float) -> Report:
    """READER saves from the fifth millisecond of each step on; the training thread waits for 70."""
    run = job(waker=READER)
    for number in range(40):
        start = number * STEP + 5 * MS
        run.span("checkpoint", start, start + int(ms * MS), thread=READER, index=number)
        run.call("write", start, start + 10 * MS, thread=READER, moved=1_000_000, path="/out/a.pt")
    return reported(run)


def test_a_save_in_a_thread_that_the_training_waits_for_blocks_the_steps() -> None:
    report = saved_by_a_thread(60)
    assert (report.verdict.level, report.verdict.bound) == ("highly", "checkpoint")
    assert report.verdict.stall.value == pytest.approx(0.7, abs=0.02)
    assert report.verdict.storage.value == pytest.approx(0.1, abs=0.02)
    (found,) = (finding for finding in report.findings if finding.rule == "C1")
    assert found.evidence[0].startswith("40 saves of 60.0 ms, 1.00 MB each")


def test_of_a_save_in_a_thread_the_time_that_nobody_waited_is_off_the_step_loop() -> None:
    run = job(waker=READER, blocked_ms=20)
    run.span("checkpoint", 5 * MS, 95 * MS, thread=READER, index=0)
    (save,) = measured(run).checkpoints
    assert save.blocked_s == pytest.approx(0.02, abs=0.001)
    assert save.background_s == pytest.approx(0.07, abs=0.001)


def test_a_process_that_never_told_when_it_computes_waits_at_least_for_its_queue() -> None:
    run = job(has_stretches=False)
    read_by(run, READER)
    report = reported(run)
    assert report.verdict.level == "highly"
    assert report.verdict.stall.value == pytest.approx(0.7, abs=0.02)
    assert report.verdict.stall_most.value == pytest.approx(1, abs=0.02)


def test_time_off_the_cpu_that_no_call_explains_is_not_judged() -> None:
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start = number * STEP
        run.wait(start, start + MS, number)
        run.span("step balance", start, start + STEP, index=number, a=30 * MS, b=10 * MS)
        run.step(start, start + STEP, number)
    report = reported(run)
    assert report.verdict.level == "unknown"
    assert "off the CPU" in report.verdict.sentence
    assert report.verdict.stall_most.value == pytest.approx(0.6, abs=0.03)


def test_time_off_the_cpu_that_calls_explain_is_judged() -> None:
    run = job("futex", by=OPENMP, blocked_ms=60, is_loader=True)
    for number in range(40):
        start = number * STEP
        run.span("step balance", start, start + STEP, index=number, a=30 * MS, b=9 * MS)
    assert reported(run).verdict.level == "not"


def test_a_thread_that_consumes_a_loader_hands_on_what_the_workers_made() -> None:
    """A thread in front of a DataLoader: the training waits for it, and it waits for a worker."""
    run = job(waker=READER)
    for number in range(40):
        start = number * STEP + 2 * MS
        run.span("data wait", start, start + 65 * MS, thread=READER, index=number, a=1)
        run.call("read", start, start + 60 * MS, process=2, moved=100_000)
    run.worker(2, start=0, end=40 * STEP)
    measures = measured(run)
    assert measures.wait_share("read") == pytest.approx(60 / 70, abs=0.03)


def test_reading_a_pipe_waits_for_the_program_that_writes_it() -> None:
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    run.process(2, end=40 * STEP, parent=1, command="reader")
    for number in range(40):
        start = number * STEP
        run.fetch(start, start + 70 * MS, number, process=1, cpu=5 * MS, delay=0)
        run.wait(start, start + 70 * MS, number)
        run.call("read", start + 2 * MS, start + 62 * MS, process=2, moved=100_000)
        run.step(start, start + STEP, number)
    measures = measured(run)
    assert measures.wait_share("read") == pytest.approx(60 / 70, abs=0.03)


# --- rules on waits with an unknown cause ---------------------------------------------------------


def checks_of(report: Report) -> dict[str, str]:
    return {check.rule: check.state for check in report.checks}


def test_rules_about_waits_are_not_judged_if_the_cause_was_not_observed() -> None:
    run = job()  # no thread is known to have ended the waits
    read_by(run, READER, ms=0.02)  # as fast as from memory
    stand_still(run, READER, from_ms=5.02)
    report = reported(run)
    assert {checks_of(report)[rule] for rule in ("W1", "W2", "W3")} == {"not judged"}
    assert "No rule explains" in terminal.render(report)


def test_rules_about_waits_are_judged_if_the_cause_was_observed() -> None:
    run = job(waker=READER)
    read_by(run, READER, ms=5)
    assert "W2" in {finding.rule for finding in reported(run).findings}


def test_no_bytes_from_a_block_device_are_no_amplification_of_zero() -> None:
    known = SimpleNamespace(devices=SimpleNamespace(read_amplification=Number(0.0, "x")))
    assert reads._amplification(known) == "not known, as no byte came from a block device"


def bounded(stretch_ms: float, *, cleared_ms: float = 0, synced_ms: float = 0) -> Report:
    """Steps of 100 ms with an input stretch that uses the CPU and clears the gradients at its
    beginning, where the thread waits for the accelerator."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start, cleared = number * STEP, int(cleared_ms * MS)
        run.span("input stretch", start, start + int(stretch_ms * MS), index=0, a=1, b=MS)
        if cleared:
            for _ in ("of the optimizer", "of the module that it calls"):
                run.span("clear gradients", start, start + cleared, index=0, b=cleared)
                start += 1000
        if synced_ms:
            begin = number * STEP + MS
            run.blocked("sync", begin, begin + int(synced_ms * MS), by=CUDA)
        run.step(number * STEP, number * STEP + STEP, number)
    return reported(run)


@pytest.mark.parametrize(
    ("stretch_ms", "headline"),
    [
        (4, "NOT I/O BOUND"),
        (15, "AT MOST MODERATELY INPUT BOUND"),
        (19, "AT MOST MODERATELY INPUT BOUND"),
        (30, "NOT JUDGED"),
    ],
)
def test_a_moderate_upper_bound_is_said(stretch_ms: float, headline: str) -> None:
    verdict = bounded(stretch_ms).verdict
    assert verdict.headline == headline
    assert verdict.level == ("not" if stretch_ms < 5 else "unknown")
    assert verdict.stall_most.value == pytest.approx(stretch_ms / 100, abs=0.005)


def test_clearing_gradients_is_no_data_wait() -> None:
    verdict = bounded(30, cleared_ms=27).verdict
    assert verdict.headline == "NOT I/O BOUND"
    assert verdict.stall_most.value == pytest.approx(0.03, abs=0.005)


def test_time_of_clearing_gradients_is_taken_off_once() -> None:
    """Where the thread waits for the accelerator meanwhile, that wait is known already."""
    verdict = bounded(30, cleared_ms=10, synced_ms=8).verdict
    assert verdict.stall_most.value == pytest.approx(0.22, abs=0.005)


def own_batch(
    *,
    moved: int = 100_000,
    every: int = 1,
    is_loader: bool = False,
    cpu_ms: int = 55,
    **call: object,
) -> Synthetic:
    """Steps of 100 ms.  In the 60 ms of an input stretch the thread reads from 10 to 12 ms, and
    uses the CPU for cpu_ms."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start = number * STEP
        if is_loader:
            run.wait(start, start + MS, number)
        run.span("input stretch", start, start + 60 * MS, index=0, a=1, b=cpu_ms * MS)
        if number % every == 0:
            begin = start + 10 * MS
            run.call("read", begin, begin + 2 * MS, moved=moved, **call)  # type: ignore[arg-type]
        run.step(start, start + STEP, number)
    return run


def test_a_loop_that_reads_and_decodes_its_batches_waits_for_them() -> None:
    report = reported(own_batch())
    assert report.verdict.headline == "HIGHLY INPUT BOUND, I/O not fully seen"
    assert report.verdict.stall.value == pytest.approx(0.5, abs=0.02)
    assert report.verdict.stall_most.value == pytest.approx(0.6, abs=0.02)
    shares = {part.key: part.share for part in report.wait}
    assert shares["cpu"] == pytest.approx(0.96, abs=0.01)
    assert shares["read"] == pytest.approx(0.04, abs=0.01)


@pytest.mark.parametrize(
    "run",
    [
        own_batch(moved=100),  # a line of a control file
        own_batch(every=5),  # a look at something else now and then
        own_batch(every=40),
        own_batch(is_loader=True),  # the loop logs, or decodes: not known
        own_batch(thread=READER),  # another thread reads meanwhile
    ],
    ids=["little", "seldom", "once", "loader", "other thread"],
)
def test_what_a_loop_computes_otherwise_is_no_known_wait(run: Synthetic) -> None:
    verdict = reported(run).verdict
    assert verdict.level == "unknown"
    assert verdict.stall_most.value == pytest.approx(0.6, abs=0.03)


def test_a_sleep_while_a_batch_is_made_is_not_known() -> None:
    run = own_batch()
    for number in range(40):
        run.blocked("sleep", number * STEP + 20 * MS, number * STEP + 30 * MS)
    verdict = reported(run).verdict
    assert verdict.stall.value == pytest.approx(0.4, abs=0.02)
    assert verdict.stall_most.value == pytest.approx(0.6, abs=0.02)


def test_a_batch_is_made_when_the_gradients_are_cleared() -> None:
    run = own_batch()
    for number in range(40):
        start = number * STEP + 40 * MS
        run.span("clear gradients", start, start + 20 * MS, index=0, b=20 * MS)
    verdict = reported(run).verdict
    assert verdict.stall.value == pytest.approx(0.3, abs=0.02)
    assert verdict.stall_most.value == pytest.approx(0.4, abs=0.02)


def decoded_in_threads(*, stands_ms: float = 0) -> Report:
    """The training thread waits 70 ms for nobody knows whom; two threads read for 5 ms and decode
    for 62 ms, or stand still for stands_ms of these."""
    run = job()
    for number in range(40):
        start = number * STEP
        for thread in (READER, READER + 1):
            begin, end = start + 1 * MS, start + 6 * MS
            run.call("read", begin, end, thread=thread, moved=100_000)
            if stands_ms:
                run.blocked("sem_wait", end, end + int(stands_ms * MS), thread=thread)
            run.blocked("sem_wait", start + 68 * MS, start + STEP, thread=thread)
    return reported(run)


def test_threads_that_read_and_compute_decode() -> None:
    shares = {part.key: part.share for part in decoded_in_threads().wait}
    assert shares["cpu"] == pytest.approx(62 / 70, abs=0.02)
    assert shares["read"] == pytest.approx(5 / 70, abs=0.02)


def test_threads_that_stand_still_decode_nothing() -> None:
    shares = {part.key: part.share for part in decoded_in_threads(stands_ms=62).wait}
    assert shares.get("cpu", 0) < 0.02
    assert shares["not observed"] == pytest.approx(65 / 70, abs=0.03)


@pytest.mark.parametrize(("gap_ms", "share"), [(0.05, 0.7), (2, 0.4)])
def test_a_wait_for_the_interpreter_lock_is_a_data_wait_if_it_follows_one(
    gap_ms: float, share: float
) -> None:
    """A thread that was woken takes the lock again; another wait for it may be the loop's own."""
    run = job(blocked_ms=40, waker=READER)
    read_by(run, READER)
    for number in range(40):
        begin = number * STEP + 41 * MS + int(gap_ms * MS)
        run.blocked("cond_wait", begin, begin + 30 * MS, waker=READER)
    verdict = reported(run).verdict
    assert verdict.stall.value == pytest.approx(share, abs=0.02)
    assert verdict.stall_most.value == pytest.approx(0.8, abs=0.02)


def test_the_interpreter_lock_bounds_the_data_wait_of_an_input_stretch() -> None:
    report = reported(job("cond_wait"))
    assert report.verdict.level == "unknown"
    assert report.verdict.stall_most.value == pytest.approx(0.8, abs=0.02)


def test_the_interpreter_lock_inside_a_computation_is_no_data_wait() -> None:
    run = job("cond_wait", at_ms=79, blocked_ms=15, cpu_ms=79, is_loader=True, waker=READER)
    read_by(run, READER)
    assert measured(run).training.maybe_s == 0


def test_a_backward_pass_before_the_first_batch_belongs_to_the_start_up() -> None:
    """The program warms up, then waits 500 ms for its first batch."""
    run = Synthetic()
    run.process(1, end=50 * STEP)
    run.span("input stretch", 10 * MS, 5 * STEP, index=2, a=1, b=MS)
    run.call("read", 20 * MS, 480 * MS, moved=100_000)
    run.step(0, 6 * STEP, 0)
    for number in range(6, 46):
        start = number * STEP
        run.span("input stretch", start, start + 2 * MS, index=0, a=1, b=MS)
        run.step(start, start + STEP, number)
    report = reported(run)
    assert report.verdict.headline == "NOT I/O BOUND"
    assert measured(run).training.wall_s == pytest.approx(41 * 0.1, abs=0.01)


@pytest.mark.parametrize(
    ("no_cpu_s", "state", "cause"),
    [(0.0, None, "decoding on the CPU"), (2.0, "not judged", "on a CPU, or ready without one")],
)
def test_decoding_is_not_asserted_where_the_thread_may_have_had_no_cpu(
    no_cpu_s: float, state: str | None, cause: str
) -> None:
    """A loop that reads its batches has no account of the time without a CPU in each wait."""
    measures = replace(measured(own_batch()), standing={"no CPU": no_cpu_s})
    report = report_of(measures)
    assert cause in report.verdict.sentence
    states = [check.state for check in report.checks if check.rule == "W2"]
    assert states == ([state] if state else [])
    (label,) = (segment.label for segment in report.wall if segment.key == "data cpu")
    assert ("or no CPU" in label) == bool(state)
