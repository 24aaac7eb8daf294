"""The effect of saves on a training: the steps beside saves, the total lost time, and the paper's
run.

    python lab/benchmarks/checkpointer_training.py             the rows of docs/performance.md

A model of 190 MB of state; the drain is paced.  Once with a free core, once with steps on all
cores, where background work slows the steps.  The paper's run is `penstock bench checkpoint`, here
with two repeats of three of its ways.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from bars import Bar, report, scratch
from checkpointer import blocking

from penstock.save.training.checkpointer import Checkpointer, Keep
from penstock_lab import checkpoint

STEP_RATIO = 1.05
PAPER_RATIO = 2.6
ROUNDS = 9
COMMAND = "python lab/benchmarks/checkpointer_training.py"


class CheckpointedModel:
    """A model on the processor; 190 MB of state."""

    def __init__(self, n_threads: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(n_threads)
        layers: list[Any] = []
        for _ in range(15):
            layers += [torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(32, 1024)
        self.step()

    def step(self) -> float:
        begin_s = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        return time.perf_counter() - begin_s

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def lost_by(self, save: Callable[[], Callable[[], bool]]) -> tuple[float, float]:
        """Return the seconds lost by a save, and the ratio of mean steps: beside the background
        work / quiet.

        The quiet step is the mean of the steps before and after: a slower machine slows down both,
        and steps are uneven without a save, too.
        """
        for _ in range(3):
            self.step()
        before = [self.step() for _ in range(16)]
        begin_s = time.perf_counter()
        is_over = save()
        block_s = time.perf_counter() - begin_s
        during = []
        while not is_over() or len(during) < 5:
            during.append(self.step())
        quiet_s = statistics.fmean([*before, *(self.step() for _ in range(16))])
        return (
            block_s + sum(step_s - quiet_s for step_s in during),
            statistics.mean(during) / quiet_s,
        )


def lost_time(n_free: int) -> list[Bar]:
    """Return the bars of a training that leaves n_free CPUs to the background work."""
    folder = scratch("checkpointer-training")
    training = CheckpointedModel(max(1, (os.cpu_count() or 2) - n_free))
    nothing, ours, theirs, ratios = [], [], [], []
    with Checkpointer(
        folder / "fast", folder / "slow", keep=Keep(fast=1, last=1), drain="200MB/s"
    ) as ckpt:
        ckpt.save(0, training.state()).durable.result()
        for step in range(1, ROUNDS + 1):

            def save(step: int = step) -> Callable[[], bool]:
                return ckpt.save(step, training.state()).durable.done

            def save_nothing() -> Callable[[], bool]:
                end_s = time.monotonic() + (ckpt.saves[-1].durable_s or 2.0)
                return lambda: time.monotonic() > end_s

            def save_blocking() -> Callable[[], bool]:
                blocking(training.state(), folder / "theirs.pt")
                return lambda: True

            lost_s, ratio = training.lost_by(save)
            ours.append(lost_s)
            ratios.append(ratio)
            nothing.append(training.lost_by(save_nothing))
            theirs.append(training.lost_by(save_blocking)[0])
        # Until the save is on the fast tier; the drain does the rest.
        local_s = statistics.median(save.lost_s for save in ckpt.saves[1:] if save.lost_s)
    shutil.rmtree(folder)
    mine, other, ratio = map(statistics.median, (ours, theirs, ratios))
    idle_s, idle_ratio = (statistics.median(column) for column in zip(*nothing, strict=True))
    cores = "a core free" if n_free else "every core busy"
    return [
        Bar(
            f"save: training step beside save and drain at 200 MB/s, {cores}",
            f"≤ ×{STEP_RATIO}" if n_free else "–", f"×{ratio:.3f} (no save: ×{idle_ratio:.3f})",
            ratio <= STEP_RATIO if n_free else None, COMMAND,
        ),
        Bar(
            f"save: time lost in all, {cores}, / blocking torch.save + fsync", "≤ ×1",
            f"×{mine / other:.2f} ({mine * 1e3:.0f} / {other * 1e3:.0f} ms; no save: "
            f"{idle_s * 1e3:.0f} ms)", mine <= other, COMMAND,
        ),
        Bar(
            f"- of it until it is on the fast tier, {cores}, without the drain", "–",
            f"×{local_s / other:.2f} ({local_s * 1e3:.0f} ms)", None, COMMAND,
        ),
    ]  # fmt: skip


def paper() -> list[Bar]:
    folder = scratch("checkpointer-paper")
    shutil.rmtree(folder)
    settings = checkpoint.CheckpointSettings(ways=("none", "slow", "checkpointer"), repeats=2)
    summaries = {
        summary.way: summary
        for summary in checkpoint.summaries_of(checkpoint.measure(folder, settings))
    }
    shutil.rmtree(folder)
    ours = summaries["checkpointer"]
    gain = "no overhead" if ours.gain is None else f"×{ours.gain:.1f}"
    is_met = ours.gain is None or ours.gain >= PAPER_RATIO
    return [
        Bar(
            f"paper: {settings.n_steps} steps, a save every {settings.every}, overhead to slow / "
            "through fast", f"≥ ×{PAPER_RATIO}",
            f"{gain} (none {summaries['none'].total_s:.1f}, slow {summaries['slow'].total_s:.1f}, "
            f"ours {ours.total_s:.1f} s)", is_met, COMMAND,
        )
    ]  # fmt: skip


def main() -> list[Bar]:
    return lost_time(1) + lost_time(0) + paper()


if __name__ == "__main__":
    report(lost_time(1))
    report(lost_time(0))
    report(paper())
