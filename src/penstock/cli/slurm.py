"""`penstock slurm`: a task prolog and an epilog for Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import click

from penstock.cli.shell import NEW_FOLDER, say, short, size, version

__all__ = ["slurm_group"]

RUNS = click.option(
    "--runs",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Where the runs lie, as JOB.STEP.HOST.",
)


@click.group("slurm", short_help="Record each job of Slurm's users or partitions.")
def slurm_group() -> None:
    """Record each job of Slurm's users or partitions, and keep a summary of each.

    \b
      penstock slurm prolog --runs /scratch/penstock
      penstock slurm epilog --runs /scratch/penstock --summaries /shared/penstock
    """


@slurm_group.command("prolog", short_help="Print the variables that record a task.")
@RUNS
@click.option("--users", default="", metavar="NAMES", help="Only these users: ann,bob.")
@click.option("--partitions", default="", metavar="NAMES", help="Only these partitions.")
@click.option("--budget", type=size, metavar="SIZE", default="100MB", show_default=True)
def prolog_command(runs: Path, users: str, partitions: str, budget: int) -> None:
    """Print the variables that record a task: for Slurm's TaskProlog.

    Never fails: a task that cannot be recorded runs unrecorded, and the reason is on standard
    error.

    \b
      penstock slurm prolog --runs /scratch/penstock --partitions gpu
    """
    from penstock.recording import slurm

    if not slurm.is_wanted(os.environ, users, partitions):
        return
    try:
        for line in slurm.prolog(runs, os.environ, budget, version()):
            click.echo(line)
    except Exception as error:
        say(f"not recorded: {error}")


@slurm_group.command("epilog", short_help="Keep a summary of each of a job's runs.")
@RUNS
@click.option(
    "--summaries",
    type=NEW_FOLDER,
    required=True,
    metavar="FOLDER",
    help="Takes JOB.STEP.HOST.summary.json for each run.",
)
@click.option("--remove", "is_removed", is_flag=True, help="Then remove the run.")
def epilog_command(runs: Path, summaries: Path, is_removed: bool) -> None:
    """Report a job's runs on this node and keep their summaries: for Slurm's Epilog.

    Never fails, as Slurm drains a node whose epilog fails.

    \b
      penstock slurm epilog --runs /scratch/penstock --summaries /shared/penstock --remove
      penstock runs /shared/penstock
    """
    from penstock.explain.epilog import kept_summaries

    try:
        for folder, problem in kept_summaries(runs, os.environ, summaries, not is_removed):
            if problem:
                say(f"{short(folder)}: no summary: {problem}")
    except Exception as error:
        say(f"no summary: {error}")
