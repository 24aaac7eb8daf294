"""Ranks that wait for each other as their exchanges show it; teams, and jobs beside each other."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.explain.measures import Measures, measure
from penstock.explain.questions import prepare
from penstock.explain.report import report_of
from stepping import Ranks, apart, coupling_of, even, in_pace, now_and_then, one_slow, together

COMPUTE = even(20, 24)


def by_steps(ranks: Ranks) -> str:
    return coupling_of(ranks.run()).how


@pytest.mark.parametrize("n", [2, 4, 10])
def test_ranks_that_are_alike_are_together_by_their_exchange(n: int) -> None:
    ranks = together(n, 12, even(1, 2), COMPUTE)
    assert by_steps(ranks) == "not known"
    found = coupling_of(ranks.run(exchanges=True))
    assert (found.mains, found.how, found.size) == (n, "together", 1)


def test_a_slow_rank_that_hardly_waits_in_the_exchange_is_together_with_the_others() -> None:
    ranks = together(4, 12, one_slow(60, rank=2), COMPUTE, late_ms=0.06)
    measures = measure(ranks.run(exchanges=True))
    assert measures.coupling.how == "together"
    assert measures.stall_fraction.value == pytest.approx(ranks.lost, rel=0.02)


def test_a_few_exchanges_show_nothing() -> None:
    assert coupling_of(together(4, 6, even(1, 2), COMPUTE).run(exchanges=True)).how == "not known"


# Meeting in some steps only


def lost_between(ranks: Ranks, every: int) -> float:
    """The longest sum of waits between two meetings, summed: the loss, as a share of the time."""
    waits = np.concatenate([np.zeros((1, ranks.waits.shape[1])), ranks.waits[1:]])
    meetings = waits.reshape(-1, every, waits.shape[1]).sum(axis=1)
    return float(meetings.max(axis=1).sum() / ranks.walls.mean())


@pytest.mark.parametrize("every", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_meet_every_few_steps_lose_what_they_lose_between_meetings(
    every: int, seed: int
) -> None:
    """Gradients are accumulated, or models averaged: in each step alone they would lose more."""
    ranks = together(4, 160, now_and_then(20), COMPUTE, every=every, seed=seed)
    run = ranks.run(exchanges=True)
    measures = measure(run)
    assert (measures.coupling.how, measures.coupling.size) == ("together", every)
    prepare(run.connection, ("coupling",))
    assert run.connection.execute("SELECT shift FROM coupling").fetchall() == [(every - 1,)]
    assert measures.stall_fraction.value == pytest.approx(lost_between(ranks, every), rel=0.02)
    assert lost_between(ranks, every) < 0.9 * ranks.lost


# Ranks that do not meet


def two_jobs(steps: int, seed: int = 1) -> Ranks:
    first = together(2, steps, one_slow(40, rank=1), COMPUTE, seed=seed)
    second = together(2, steps, even(1, 2), even(50, 55), seed=seed + 1)
    return first.beside(second)


def mean_of_losses(ranks: Ranks) -> float:
    """The loss of two jobs of two ranks."""
    lost = [ranks.waits[1:, at : at + 2].max(axis=1).sum() for at in (0, 2)]
    return float(2 * sum(lost) / ranks.walls.mean() / 4)


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [0, 1, 0, 1]], ids=["one job", "two jobs"])
def test_teams_that_do_not_meet_lose_what_each_of_them_loses(numbers: list[int]) -> None:
    ranks = two_jobs(100)
    measures = measure(ranks.run(size=max(numbers) + 1, numbers=numbers, exchanges=True))
    assert measures.coupling.how == "groups"
    # The mean over ranks of losses over mean wall time: the jobs take different times.
    told = measures.stall_fraction.value
    assert told == pytest.approx(mean_of_losses(ranks), rel=0.02)
    verdict = report_of(measures).verdict
    assert told > 1.3 * (measures.mean_stall.value or 0)
    assert "the job lost" in verdict.sentence


@pytest.mark.parametrize("steps", [10, 30, 100])
@pytest.mark.parametrize("seed", range(4))
def test_two_jobs_beside_each_other_are_never_together(steps: int, seed: int) -> None:
    assert coupling_of(two_jobs(steps, seed).run(exchanges=True)).how in ("groups", "not known")


@pytest.mark.parametrize("steps", [10, 30, 100])
@pytest.mark.parametrize("seed", range(4))
def test_two_like_jobs_that_start_together_are_never_together(steps: int, seed: int) -> None:
    of_each = [together(2, steps, now_and_then(5), COMPUTE, seed=seed + 10 * job) for job in (0, 1)]
    found = coupling_of(of_each[0].beside(of_each[1]).run(exchanges=True))
    assert found.how in ("groups", "not known", "apart")


def with_others(ranks: Ranks) -> Ranks:
    """Each rank exchanges with ranks that were not recorded, for a third of its step."""
    lengths = np.diff(ranks.ends, axis=0)
    return replace(ranks, comes=ranks.ends[1:] - lengths / 3)


@pytest.mark.parametrize("n", [2, 4, 10])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_exchange_with_others_are_not_together(n: int, seed: int) -> None:
    alone = with_others(apart(n, 60, now_and_then(20), COMPUTE, seed=seed))
    assert coupling_of(alone.run(exchanges=True)).how in ("apart", "not known")


def test_ranks_that_keep_pace_and_exchange_elsewhere_are_not_together() -> None:
    paced = in_pace(4, 60, 100, even(20, 80))
    # Each is the last one to come in an exchange of its own.
    alone = replace(paced, comes=paced.ends[1:] - 0.2)
    assert coupling_of(alone.run(exchanges=True)).how != "together"


# Real exchanges

DDP = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, steps, every, slow_s = dist.get_rank(), *map(float, sys.argv[1:4])
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(int(steps)):
        if step % 2 == rank % 2:
            time.sleep(slow_s)
        optimizer.zero_grad()
        if (step + 1) % every:
            with model.no_sync():
                model(torch.ones(8, 256)).mean().backward()
        else:
            model(torch.ones(8, 256)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


def torchrun(program: Path, n: int, *args: object) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
        *(str(n), str(program), *map(str, args)),
    ]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    import textwrap

    pytest.importorskip("torch")
    path = tmp_path / "ddp.py"
    path.write_text(textwrap.dedent(DDP))
    return path


def run_of(recorded_command: Callable[..., Any], command: list[str]) -> Measures:
    return measure(recorded_command(command, environment={"OMP_NUM_THREADS": "1"}))


@pytest.mark.slow
@pytest.mark.alone  # a rank that is woken late has not met the others in that step
def test_ranks_of_ddp_are_together(recorded_command: Callable[..., Any], program: Path) -> None:
    """By steps alone so few do not show it."""
    found = run_of(recorded_command, torchrun(program, 2, 20, 1, 0.03)).coupling
    assert (found.how, found.size, found.mains) == ("together", 1, 2)


@pytest.mark.slow
@pytest.mark.alone
def test_ranks_that_exchange_every_fourth_step_meet_so_often(
    recorded_command: Callable[..., Any], program: Path
) -> None:
    found = run_of(recorded_command, torchrun(program, 2, 48, 4, 0.02)).coupling
    assert (found.how, found.size) == ("together", 4)


@pytest.mark.slow
def test_two_jobs_of_ddp_in_one_recording_are_not_one(
    recorded_command: Callable[..., Any], program: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both.py"
    commands = [torchrun(program, 2, 40, 1, 0.02), torchrun(program, 2, 40, 1, 0.035)]
    both.write_text(
        "import subprocess\n"
        f"jobs = [subprocess.Popen(command) for command in {commands!r}]\n"
        "raise SystemExit(max(job.wait() for job in jobs))\n"
    )
    run = recorded_command([sys.executable, str(both)], environment={"OMP_NUM_THREADS": "1"})
    assert measure(run).coupling.how in ("groups", "together", "not known")
    with run.connection.cursor() as engine:
        prepare(engine, ("teams",))
        teams = engine.execute(
            "SELECT t.generation, p.parent FROM teams AS t JOIN processes AS p USING (process)"
        ).fetchall()
        (how,) = engine.execute("SELECT how FROM coupling").fetchone()
    assert len(teams) == 4
    if how != "not known":  # each team is of one torchrun, and of each there is one
        assert len(set(teams)) == 2
        assert len({team for team, _ in teams}) == 2
