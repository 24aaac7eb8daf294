"""Predictions: the model of a loader against a recursion, made-up runs, a job on a slow tier."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import UNCOMPILED
from penstock.cli import cli
from penstock.errors import RunError
from penstock.runs.run import Run
from penstock.trial import predict
from penstock.trial.predict import Scenario, stated
from penstock.trial.prefetching import BatchWork, Limits, Loop, simulate
from penstock_lab import tier as slow_tiers
from slowtier import needs_fuse
from synthetic import MS, Synthetic

S = 1000 * MS
TIMES = st.floats(0.001, 0.1)


def of_cpu(seconds: float) -> BatchWork:
    return BatchWork(0.0, 0, 0, 0.0, seconds)


# --- the model -----------------------------------------------------------------------------------


def by_recursion(loop: Loop, workers: int, prefetch: int) -> tuple[float, float]:
    """Wall and wait of a pass in which nobody shares anything, batch after batch."""
    free = [loop.start_s[0]] * workers
    sent = [0.0] * len(loop.fetches)
    now, wait = loop.before_s, 0.0
    for batch, fetch in enumerate(loop.fetches):
        worker = batch % workers
        begin = max(free[worker], sent[batch])
        free[worker] = begin + loop.gap_s + fetch.storage_s + fetch.other_s + fetch.cpu_s
        taken = max(now, free[worker])
        if batch + workers * prefetch < len(sent):
            sent[batch + workers * prefetch] = taken
        wait += taken + loop.hand_s - now
        now = taken + loop.hand_s + loop.consume_s[batch]
    return now + loop.after_s, wait


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 4),
    st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES),
)
def test_without_contention_the_model_is_a_recursion(
    batches: list[tuple[float, ...]], workers: int, prefetch: int, fixed: tuple[float, ...]
) -> None:
    loop = Loop(
        [BatchWork(storage, 1, 1e6, other, cpu) for storage, other, cpu, _ in batches],
        [consume for *_, consume in batches],
        (fixed[0],), *fixed[1:],
    )  # fmt: skip
    outcome = simulate([loop], workers, prefetch, Limits())
    wall_s, wait_s = by_recursion(loop, workers, prefetch)
    assert outcome.wall_s == pytest.approx(wall_s)
    assert outcome.wait_s == pytest.approx(wait_s)


def test_without_workers_the_training_thread_fetches() -> None:
    outcome = simulate([Loop([of_cpu(0.02)] * 50, [0.01] * 50)], 0, 2, Limits(cpus=1))
    assert (outcome.wall_s, outcome.wait_s) == pytest.approx((1.5, 1.0))


@pytest.mark.parametrize(("cpus", "wall_s"), [(1, 4.0), (2, 2.0), (8, 1.0)])
def test_workers_share_the_cpus(cpus: float, wall_s: float) -> None:
    """100 fetches of 40 ms by 4 workers; the training takes no CPU."""
    loop = Loop([of_cpu(0.04)] * 100, [0.0] * 100, consume_cpus=0.0)
    assert simulate([loop], 4, 2, Limits(cpus=cpus)).wall_s == pytest.approx(wall_s)


def test_ranks_share_the_storage_and_meet_after_each_batch() -> None:
    loop = Loop([BatchWork(0.01, 1, 1e6, 0.0, 0.0)] * 100, [0.001] * 100)
    alone = simulate([loop], 2, 2, Limits(bandwidth_bps=1e8)).wall_s
    assert alone == pytest.approx(1.0, rel=0.02)  # 100 MB at 100 MB/s
    assert simulate([loop] * 4, 2, 2, Limits(bandwidth_bps=1e8)).wall_s == pytest.approx(
        4, rel=0.01
    )
    assert simulate([loop] * 4, 2, 2, Limits(requests_hz=50)).wall_s == pytest.approx(8, rel=0.01)
    slow = replace(loop, consume_s=[0.05] * 100)
    outcome = simulate([loop, slow], 2, 2, Limits())
    assert outcome.wall_s == pytest.approx(5.01, rel=0.01)  # the slowest rank's


# --- made-up runs --------------------------------------------------------------------------------


def job(*, opens_ms: int = 10, batches: int = 60, unexplained_ms: int = 0) -> Synthetic:
    """One worker that opens and reads a file for each batch, and steps of 20 ms."""
    run = Synthetic()
    run.process(1, end=10 * S, tells_delay=True)
    run.worker(2, end=10 * S)
    run.note("cpus", "4")
    run.span("loader", 0, 9 * S, index=1, a=1, b=8)
    worker = training = 100 * MS
    taken: list[int] = []
    for batch in range(batches):
        begin, worker = worker, worker + opens_ms * MS + 4 * MS
        run.call("open", begin, begin + opens_ms * MS // 2, path=f"/data/{batch}", process=2)
        run.call(
            "read", begin + opens_ms * MS // 2, begin + opens_ms * MS, path=f"/data/{batch}",
            process=2, moved=100_000, offset=0,
        )  # fmt: skip
        run.fetch(begin, worker, batch, cpu=4 * MS, delay=0)
        ready = max(training, worker) + unexplained_ms * MS
        run.wait(training, ready, batch)
        run.step(ready, ready + 20 * MS, batch)
        training = ready + 20 * MS
        taken.append(ready)
        worker = max(worker, taken[batch - 1] if batch else 0)
    return run


def test_a_slower_tier_is_predicted_from_the_calls_of_each_batch() -> None:
    run = job()
    as_was = predict.predict(run, Scenario())
    assert as_was.batches == 60
    assert abs(as_was.off) < 0.02
    assert as_was.wall.state == "derived"
    slower = predict.predict(run, Scenario(stated(0.020, 100e6, math.inf)))
    # A look-up, an open and a read of 20 ms each, 1 ms of bytes, 4 ms of CPU.
    assert slower.wall.value == pytest.approx(60 * 0.065, rel=0.03)
    assert slower.share.value == pytest.approx(1 - 20 / 65, rel=0.05)


def test_more_workers_take_the_wait_away() -> None:
    slow = stated(0.020, 100e6, math.inf)
    waits = [
        predict.predict(job(), Scenario(slow, workers=workers)).share.value for workers in (1, 2, 4)
    ]
    assert waits[0] > 0.6 > 0.5 > waits[1] > 0.3 > 0.2 > waits[2]  # type: ignore[operator]


def test_what_the_model_does_not_reproduce_is_not_judged() -> None:
    answer = predict.predict(job(unexplained_ms=15), Scenario(stated(0.02, 1e8, math.inf)))
    # Constant time to take a batch over is known; waits of every other batch are not.
    assert answer.wall.value is not None
    run = job()
    for batch in range(0, 60, 2):
        run.wait(5 * S + batch * 40 * MS, 5 * S + batch * 40 * MS + 30 * MS, 60 + batch // 2)
        run.fetch(4 * S + batch * MS, 4 * S + batch * MS + MS, 60 + batch // 2, cpu=MS, delay=0)
    answer = predict.predict(run, Scenario())
    assert answer.wall.value is None
    assert answer.share.value is None
    assert "the model has" in answer.wall.why


def test_data_that_fits_into_memory_is_read_once() -> None:
    run = Synthetic()
    run.process(1, end=10 * S, tells_delay=True)
    for batch in range(40):
        start = S + batch * 50 * MS
        run.call(
            "pread", start, start + 30 * MS, path="/data/all", moved=1_000_000,
            offset=batch % 20 * 1_000_000,
        )  # fmt: skip
        run.fetch(start, start + 30 * MS, batch, process=1, cpu=0, delay=0)
        run.wait(start, start + 30 * MS, batch)
        run.step(start + 30 * MS, start + 50 * MS, batch)
    costs = stated(0.1, math.inf, math.inf)
    enough = predict.predict(run, Scenario(costs))
    little = predict.predict(run, Scenario(costs, memory_bytes=10_000_000))
    assert enough.wall.value == pytest.approx(20 * 0.1 + 40 * 0.02, rel=0.02)
    assert little.wall.value == pytest.approx(40 * 0.1 + 40 * 0.02, rel=0.02)
    assert any("does not fit" in note for note in little.notes)


def two_ranks(run: Synthetic) -> None:
    run.process(10, end=10 * S, rank=1, world_size=2)
    run.wait(S, 2 * S, 0, process=10)
    run.step(2 * S, 3 * S, 0, process=10)


def two_loaders(run: Synthetic) -> None:
    for number, start in enumerate((300 * MS, 2 * S)):
        run.fetch(start, start + MS, number, process=1, a=2, cpu=0, delay=0)
        run.wait(start, start + MS, number, a=2)


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (two_ranks, "2 processes train"),
        (two_loaders, "two loaders are consumed at the same time"),
        (lambda run: run.wait(9 * S, 9 * S + MS, 60), "1 of 61 batches have no known fetch"),
        (
            lambda run: (run.fetch(8 * S, 8 * S + MS, 77), run.wait(9 * S, 9 * S + MS, 77)),
            "batches came out of order",
        ),
    ],
)
def test_what_the_model_does_not_know_is_refused(
    add: Callable[[Synthetic], object], why: str
) -> None:
    run = job()
    add(run)
    with pytest.raises(RunError, match=f"no prediction: {why}"):
        predict.predict(run, Scenario())


@pytest.mark.parametrize(
    ("op", "why"),
    [("mmap", "data files are mapped"), ("fread", "6.00 MB of 56.0 MB of data"),
     ("read", "6.00 MB of 56.0 MB of data")],
)  # fmt: skip
def test_data_that_the_fetches_do_not_read_by_calls_is_not_judged_elsewhere(
    op: str, why: str
) -> None:
    """A mapped file, buffered reading, a thread that reads for the worker."""
    run = job()
    run.call(op, S, S + MS, path="/data/all", process=2, thread=9, moved=50_000_000)
    with pytest.raises(RunError, match=f"no prediction: {why}"):
        predict.predict(run, Scenario(stated(0.01, 1e9, math.inf)))
    assert predict.predict(run, Scenario(workers=2)).wall.value is not None


def test_a_program_without_a_known_loader_is_refused(recorded: Callable[..., Run]) -> None:
    run = recorded("open('a', 'w').write('b')")
    with pytest.raises(RunError, match="no prediction: 0 processes train"):
        predict.predict(run, Scenario())


def test_the_command_refuses_a_tier_that_is_stated_too(recorded: Callable[..., Run]) -> None:
    folder = str(recorded("open('a', 'w').write('b')").folder)
    answer = CliRunner().invoke(cli, ["predict", folder, "--tier", folder, "--latency", "1ms"])
    assert answer.exit_code == 2
    assert "--tier is measured" in answer.output


# --- a real job ----------------------------------------------------------------------------------

TRAINING = (
    UNCOMPILED
    + """
import glob, sys, time, torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
files = sorted(glob.glob(sys.argv[1] + "/*.bin"))

class Items(Dataset):
    def __len__(self):
        return len(files)
    def __getitem__(self, place):
        with open(files[place], "rb") as file:
            return torch.frombuffer(bytearray(file.read()[:256]), dtype=torch.uint8).float()

if __name__ == "__main__":
    model = torch.nn.Linear(256, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(Items(), 4, num_workers=2):
        time.sleep(0.02)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
)


@needs_fuse
@pytest.mark.slow
def test_a_job_takes_on_a_slow_tier_what_was_predicted(
    recorded: Callable[..., Run], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="pip install 'penstock[torch]'")
    data = tmp_path / "data"
    (data / "tried").mkdir(parents=True)
    for number in range(200):
        (data / f"{number:03}.bin").write_bytes(bytes(20_000))
    local = recorded(TRAINING, args=[data])
    with slow_tiers.slow(data, latency_s=0.020) as tier:
        answer = CliRunner().invoke(
            cli,
            ["predict", str(local.folder), "--tier", f"{tier.path}/tried", "--json"],
            catch_exceptions=False,
        )
        there = recorded(TRAINING, args=[tier.path])
    told = json.loads(answer.stdout)
    truth = predict.predict(there, Scenario()).recorded
    assert truth.wall_s > 2 * told["recorded"]["wall_s"]
    assert told["wall"]["value"] == pytest.approx(truth.wall_s, rel=0.15)
    assert told["share"]["value"] == pytest.approx(truth.wait_s / truth.wall_s, abs=0.1)
