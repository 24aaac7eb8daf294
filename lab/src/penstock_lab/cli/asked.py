"""The question before much is written: arguments in, a choice out."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.shell import INTERRUPTED, fail
from penstock.words import show
from penstock_lab.folders import refuse_without_room

__all__ = ["asked"]

ASK_ABOVE_BYTES = 1 << 30  # less is written without a question


def asked(
    folder: Path,
    n_bytes: float,
    yes: bool,
    at_once: float | None = None,
    less: str = "a smaller --scale",
) -> None:
    """Ask before a large write.  at_once: the bytes present at one time; all without a value.
    less: the way to fewer bytes.  Ends here after a no.  Raises TierError: no room."""
    refuse_without_room(folder, n_bytes if at_once is None else at_once, less)
    if n_bytes > ASK_ABOVE_BYTES and not yes:
        said = f"{folder}: {show(n_bytes, 'B')} will be written; go on?"
        try:
            is_wanted = click.confirm(said, err=True)
        except click.Abort:  # Ctrl-C, or nobody is there to answer
            click.echo(err=True)
            is_wanted = False
        if not is_wanted:
            fail("not begun, nothing was written; --yes goes on without asking", INTERRUPTED)
