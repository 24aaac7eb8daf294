"""`penstock mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.shell import version

if TYPE_CHECKING:
    from penstock.runs.run import Run

__all__ = ["mcp_command"]


@click.command("mcp", short_help="Answer a coding agent about runs (MCP over stdio).")
@click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path()
)
@click.option(
    "--trials", is_flag=True, help="Also offer whatif: replays, which read from the storage."
)
def mcp_command(folder: Path, trials: bool) -> None:
    """Answer a coding agent about the runs below a folder: the Model Context Protocol over stdio.

    Tools: report, findings, sql, compare, check, runs and, with --trials, whatif.  Answers are
    bounded; only runs below FOLDER (the current folder) are read.  Needs the extra penstock[mcp].

    \b
      penstock mcp /shared/runs
      claude mcp add penstock -- penstock mcp /shared/runs
    """
    from penstock.interop.agents import Tools, serve

    serve(Tools(folder, _replayed if trials else None), version())


def _replayed(run: Run, change: dict[str, Any], for_s: float) -> str:
    from penstock.trial import whatif

    tier = change["tier"]
    wanted = whatif.Change(
        Path(tier) if tier is not None else None, change["threads"], change["readahead"]
    )
    return whatif.to_json(whatif.whatif(run, wanted, for_s=for_s))
