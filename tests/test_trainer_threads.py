"""Threads that read and compute: a wait for such a thread may be for its computation."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import UNCOMPILED
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from synthetic import MS, Synthetic
from test_unknown_loaders import READER, job, measured, read_by, reported


@pytest.fixture(params=["trains", "steps"])
def mark(request: pytest.FixtureRequest) -> Callable[[Synthetic], None]:
    """How a thread is known to train: it computes gradients, or it takes steps itself."""

    def trains(run: Synthetic) -> None:
        run.span("trains", 5 * MS, 5 * MS + 1, thread=READER, index=0)

    def steps(run: Synthetic) -> None:
        for number in range(3):
            start = (100 * number + 70) * MS
            run.span("step", start, start + MS, thread=READER, index=number, kind="step")

    return {"trains": trains, "steps": steps}[request.param]


def test_a_wait_for_a_thread_that_trains_is_not_known_to_be_for_data(
    mark: Callable[[Synthetic], None],
) -> None:
    run = job(waker=READER)
    read_by(run, READER, ms=20)
    mark(run)
    measures = measured(run)
    assert measures.training.inferred_waits == 0
    report = reported(run)
    assert report.verdict.level == "unknown"
    assert report.verdict.stall.value is None


def test_a_wait_of_unknown_end_is_not_witnessed_by_what_a_thread_that_trains_reads(
    mark: Callable[[Synthetic], None],
) -> None:
    run = job()
    read_by(run, READER, ms=20)
    mark(run)
    assert reported(run).verdict.level == "unknown"


def test_a_thread_that_reads_beside_one_that_trains_is_a_loader(
    mark: Callable[[Synthetic], None],
) -> None:
    run = job(waker=READER + 1)
    read_by(run, READER + 1)
    mark(run)
    assert reported(run).verdict.level == "highly"


TRAINER = """
    import queue, sys, threading
    import torch
    import penstock

    torch.set_num_threads(1)
    losses = queue.Queue(1)

    def train():
        model = torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(2)))
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        for _ in range(20):
            with open(sys.argv[1], "rb", buffering=0) as file:
                file.read()
            optimizer.zero_grad()
            loss = model(torch.ones(64, 768)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.put(loss.item())
        losses.put(None)

    threading.Thread(target=train).start()
    loss = 0
    while loss is not None:
        with penstock.step():
            loss = losses.get()
"""


def test_steps_that_wait_for_a_thread_that_trains_are_not_judged(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    """Nearly all of the time is computing, and the report was 100 % data wait, mostly decoding."""
    pytest.importorskip("torch")
    (tmp_path / "item").write_bytes(bytes(100_000))
    run = recorded(UNCOMPILED + textwrap.dedent(TRAINER), args=(tmp_path / "item",))
    assert run.sql("SELECT count(*) FROM spans WHERE name = 'trains'") == [(1,)]
    measures = measure(run)
    assert measures.training.inferred_waits == 0
    verdict = report_of(measures).verdict
    assert verdict.level in ("unknown", "not")
    assert verdict.stall.value is None or verdict.stall.value < 0.05


ACTOR = """
    import queue, sys, threading
    import torch
    import penstock

    torch.set_num_threads(1)
    batches = queue.Queue(1)
    beside = {beside}

    @torch.no_grad()
    def act():
        for _ in range(30):
            with open(sys.argv[1], "rb", buffering=0) as file:
                file.read()
            batches.put(beside(torch.ones(64, 768)))
        batches.put(None)

    threading.Thread(target=act).start()
    if "{steps}" == "by hand":
        batch = 0
        while batch is not None:
            with penstock.step():
                batch = batches.get()
    else:
        student = torch.nn.Linear(768, 1)
        optimizer = torch.optim.SGD(student.parameters(), 0.001)
        while (batch := batches.get()) is not None:
            optimizer.zero_grad()
            student(batch).mean().backward()
            optimizer.step()
"""
MODEL = "torch.nn.Sequential(*(torch.nn.Linear(768, 768) for _ in range(3)))"
# A transform is a module, too, as those of torchvision are; it has no parameters.
TRANSFORM = "torch.nn.Sequential(*(torch.nn.Softmax(1) for _ in range(60)))"


@pytest.fixture(params=["by hand", "of an optimizer"])
def beside(
    request: pytest.FixtureRequest, recorded: Callable[..., Any], tmp_path: Path
) -> Callable[[str], Any]:
    """Record a training beside a thread that reads and calls this module."""
    pytest.importorskip("torch")
    (tmp_path / "item").write_bytes(bytes(100_000))

    def run(module: str) -> Any:
        program = UNCOMPILED + textwrap.dedent(ACTOR.format(beside=module, steps=request.param))
        return recorded(program, args=(tmp_path / "item",))

    return run


def test_a_thread_that_only_calls_a_model_is_no_loader(beside: Callable[[str], Any]) -> None:
    """A teacher, an actor, an evaluation: its computing was data wait, 90 % where 22 % was true."""
    run = beside(MODEL)
    assert run.sql("SELECT count(*) FROM spans WHERE name = 'trains'") == [(1,)]
    measures = measure(run)
    assert measures.training.inferred_waits == 0
    verdict = report_of(measures).verdict
    assert verdict.level in ("unknown", "not")
    assert verdict.stall.value is None or verdict.stall.value < 0.05


def test_a_thread_that_transforms_what_it_reads_is_a_loader(beside: Callable[[str], Any]) -> None:
    run = beside(TRANSFORM)
    assert run.sql("SELECT count(*) FROM spans WHERE name = 'trains'") == [(0,)]
    assert measure(run).training.inferred_waits > 10
