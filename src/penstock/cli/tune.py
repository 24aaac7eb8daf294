"""Define the command `penstock tune`: arguments in, a table out.  penstock.trial.tune decides."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.shell import (
    AS_JSON,
    NEW_FILE,
    TIER,
    duration,
    fail,
    print_json,
    print_rich,
    say,
    working,
)

if TYPE_CHECKING:
    from penstock.trial.tune import Outcome, Settings, Tuned

__all__ = ["tune_command"]

ENDS_WITHIN_S = 10.0  # from the request to end until a kill
FAILED = 1
ENDED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


@click.command(
    "tune",
    short_help="Find the loader's knobs by short trial runs.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "-o",
    "--output",
    type=NEW_FILE,
    default="penstock-tune.toml",
    show_default=True,
    metavar="FILE",
    help="The result, for penstock run --tuned.",
)
@click.option(
    "--window",
    "window_s",
    type=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="A trial run is ended after this time, by SIGTERM.",
)
@click.option(
    "--runs",
    type=click.IntRange(6, 1000),
    default=30,
    show_default=True,
    metavar="N",
    help="At most so many runs.",
)
@click.option("--staged", "tier", type=TIER, help="Try the copies on this tier too.")
@click.option("--seed", type=int, metavar="N", help="Of the order of the runs.")
@AS_JSON
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def tune_command(
    command: tuple[str, ...],
    output: Path,
    window_s: float,
    runs: int,
    tier: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Find the knobs that make a training job faster, by short runs of the job itself.

    Each trial runs the command with one knob changed, beside a run without the change, in random
    order.  A change is kept only if its gain is certain at 95 %.  The command must tolerate to be
    run many times and ended early: give it a folder of its own for its output.

    \b
      penstock tune -- python train.py --output /tmp/trial
      penstock run --tuned penstock-tune.toml python train.py
      penstock tune --json -- python train.py | jq .settings
    """
    from penstock.recording import machine
    from penstock.trial import tune as tuning

    quota = machine.cpu_quota()
    cpus = len(os.sched_getaffinity(0)) if quota is None else max(1, int(float(quota[0])))
    has_gpu = Path("/dev/nvidia0").exists()
    with tempfile.TemporaryDirectory(prefix="penstock-tune-") as folder, working("tuning") as at:
        number = 0

        def run(settings: Settings) -> Outcome:
            nonlocal number
            number += 1
            words = " ".join(f"{knob}={value}" for knob, value in settings.items())
            at.say(f"run {number} of at most {runs}: {words or 'as it is'}", number / runs)
            return _run(command, settings, Path(folder) / "run", window_s)

        tuned = tuning.tune(
            run, lambda start: tuning.candidates(start, cpus, tier, has_gpu), runs, seed
        )
    tuning.store(tuned, command, output)
    if as_json:
        print_json({"file": str(output), "command": command, **tuning.facts(tuned)})
        return
    _print(tuned)
    if tuned.settings:
        click.echo(f"penstock run --tuned {output} {' '.join(command)}")


def _run(command: tuple[str, ...], settings: Settings, folder: Path, window_s: float) -> Outcome:
    """Run the command once under the recorder; exits if the command fails."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "penstock", "run", "-q", "-o", str(folder)]
    if settings.get("ahead"):
        words.append("--ahead")
    if "staged" in settings:
        words += ["--staged", str(settings["staged"])]
    environ = os.environ | {"PENSTOCK_TUNED": json.dumps(settings)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*words, "--", *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _await(process, window_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        output.seek(0)
        last = output.read()[-2000:].decode(errors="replace").strip().rpartition("\n")[2]
    is_ended = process.returncode in ENDED
    if not is_ended or not folder.is_dir():
        fail(f"the trial ended with status {process.returncode}: {last}", FAILED)
    return _outcome(folder)


def _await(process: subprocess.Popen[bytes], window_s: float) -> None:
    """Wait for the end of a trial; after the trial's window ask the process to end."""
    try:
        process.wait(window_s)
        return
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(folder: Path) -> Outcome:
    from penstock.explain.measures import measure
    from penstock.runs.run import open_run
    from penstock.trial.tune import Outcome

    with open_run(folder) as run:
        training = measure(run).training
        rows = run.sql("select distinct value from notes where key = 'tuned'").fetchall()
    loaders: list[Any] = [json.loads(value) for (value,) in rows]
    refused = tuple(loader["refused"] for loader in loaders if loader.get("refused"))
    wall_s = training.wall_s or 0.0
    share = (training.data_wait_s or 0.0) / wall_s if wall_s else 0.0
    steps = training.steps or training.waits  # a loop without an optimizer: count batches
    return Outcome(steps, wall_s, share, tuple(loaders), refused)


def _print(tuned: Tuned) -> None:
    """Print all trials, also of knobs without a gain."""
    from rich.table import Table

    if tuned.reason:
        say(tuned.reason)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("knob", "value", "speed", "interval", "pairs", "verdict"):
        table.add_column(name, justify="left" if name in ("knob", "verdict") else "right")
    for trial in tuned.trials:
        gain = trial.gain
        bounds = f"{gain.low:.2f} to {gain.high:.2f}" if gain.high < 1e6 else "–"
        ratio = f"{gain.ratio:.2f}x" if gain.pairs else "–"
        row = (trial.knob, str(trial.value), ratio, bounds, str(gain.pairs), trial.verdict)
        table.add_row(*row)
    print_rich(table)
    click.echo(f"{tuned.runs} runs; the start: {tuned.start.rate_hz:.1f} steps/s")
