"""`penstock demo`."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.shell import NEW_FOLDER, ProgressBar

__all__ = ["demo_command"]


@click.command("demo")
@click.option(
    "-o",
    "--output",
    type=NEW_FOLDER,
    default=Path("penstock-demo"),
    show_default=True,
    metavar="FOLDER",
    help="A new folder for the data, two runs and their pages (about 60 MB).",
)
def demo_command(output: Path) -> None:
    """Show on this machine what Penstock does, in about a minute.

    A small training waits for pictures behind a slow web server on loopback.  Penstock records the
    training, names the reason and a remedy, runs the training again with the remedy, and compares
    the two runs.
    """
    from penstock.trial.demo.story import demonstrate

    with ProgressBar("making pictures") as progress:
        demonstrate(output, click.echo, progress.advance)
