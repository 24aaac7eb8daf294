"""The command line: arguments in, exit status out.  No logic; each command imports only needed
modules.

The only module that prints and exits.  The result of a command goes to standard output, all remarks
to standard error, an error as a single line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from importlib import import_module, metadata
from typing import Any, NoReturn, TextIO, cast

import click

from penstock.cli.shell import BAD_INPUT, INTERRUPTED, debug, fail, say, version
from penstock.errors import MissingDependency, PenstockError
from penstock.recording import recorder
from penstock.runs import ctrl_c
from penstock.safe.harmless import Shown

__all__ = ["cli", "main"]

BROKEN = 70  # EX_SOFTWARE
LABORATORY = "penstock_lab"


def main() -> NoReturn:
    """Run a command and exit; after an error print a single line."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    # Names of files, error texts of the system, and the content of logs and pages are foreign text.
    sys.stderr = cast(TextIO, Shown(sys.stderr)) if sys.stderr is not None else None
    if sys.stdout.isatty():
        sys.stdout = cast(TextIO, Shown(sys.stdout))
    recorder.unburst()  # inside a run with a burst buffer
    try:
        status = cli.main(prog_name="penstock", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "penstock"
        fail(f"{error.format_message().rstrip('.')}; {path} --help says how", BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        sys.exit(INTERRUPTED)
    except PenstockError as error:
        debug()
        fail(str(error), BAD_INPUT)
    except OSError as error:  # standard output is full or closed; else the message names the file
        debug()
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}; nothing more was written", BAD_INPUT)
    except Exception as error:
        debug()
        fail(
            f"an error of our own: {error!r}; PENSTOCK_DEBUG=1 shows where, please report it",
            BROKEN,
        )
    sys.exit(status if isinstance(status, int) else 0)


# The headings of the help with their commands; a command without a heading comes last.
HEADINGS = {
    "Record": ("run", "attach", "gather", "reduce", "watch", "window", "slurm"),
    "Explain": (
        *("report", "sql", "timeline", "compare", "check", "ceiling", "whatif", "predict"),
        *("runs", "tensorboard", "export", "import", "mcp"),
    ),
    "Remove the wait": ("feed", "tiers", "stage", "save", "tune"),
    "Experiments": ("demo", "bench"),
}


# The module and name of each command, imported when needed.  The laboratory is a separate
# distribution.
COMMANDS = {
    "run": ("penstock.cli.record", "run_command"),
    "attach": ("penstock.cli.record", "attach_command"),
    "gather": ("penstock.cli.record", "gather_command"),
    "reduce": ("penstock.cli.record", "reduce_command"),
    "watch": ("penstock.cli.record", "watch_command"),
    "window": ("penstock.cli.record", "window_command"),
    "slurm": ("penstock.cli.slurm", "slurm_group"),
    "report": ("penstock.cli.explain", "report_command"),
    "sql": ("penstock.cli.explain", "sql_command"),
    "timeline": ("penstock.cli.explain", "timeline_command"),
    "compare": ("penstock.cli.explain", "compare_command"),
    "check": ("penstock.cli.explain", "check_command"),
    "ceiling": ("penstock.cli.explain", "ceiling_command"),
    "whatif": ("penstock.cli.explain", "whatif_command"),
    "predict": ("penstock.cli.predict", "predict_command"),
    "runs": ("penstock.cli.fleet", "runs_command"),
    "tensorboard": ("penstock.cli.explain", "tensorboard_command"),
    "export": ("penstock.cli.explain", "export_command"),
    "import": ("penstock.cli.explain", "import_command"),
    "mcp": ("penstock.cli.agents", "mcp_command"),
    "feed": ("penstock.cli.feed", "feed"),
    "tiers": ("penstock.cli.stage", "tiers_group"),
    "stage": ("penstock.cli.stage", "stage_group"),
    "save": ("penstock.cli.save", "save"),
    "tune": ("penstock.cli.tune", "tune_command"),
    "demo": ("penstock.cli.demo", "demo_command"),
    "bench": ("penstock_lab.cli", "bench"),
}


class _Group(click.Group):
    """Commands under headings; a reader may stop reading, where click itself would exit with 1.

    A command is imported when the command, or the list of all commands, is needed.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._here: MutableMapping[str, click.Command] = {}
        super().__init__(*args, **options)

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        for name in COMMANDS:  # in order; the order of a set would vary between processes
            if name not in self._here:
                self._here[name] = _imported(name)
        return self._here

    @commands.setter
    def commands(self, commands: MutableMapping[str, click.Command]) -> None:
        self._here = commands

    def add_command(self, command: click.Command, name: str | None = None) -> None:
        self._here[name or str(command.name)] = command

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS and name not in self._here:
            self._here[name] = _imported(name)
        return self._here.get(name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        listed = [name for names in HEADINGS.values() for name in names]
        others = tuple(name for name in self.list_commands(context) if name not in listed)
        widest = max(map(len, self.commands))
        for heading, names in {**HEADINGS, "Other": others}.items():
            with formatter.section(heading):
                # Equal widths, so the columns of all sections align.
                rows = [(f"{n:<{widest}}", self.commands[n].get_short_help_str(80)) for n in names]
                formatter.write_dl(rows)

    def invoke(self, context: click.Context) -> Any:
        try:
            with ctrl_c.heard():
                result = super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(0)
        return result


def _imported(name: str) -> click.Command:
    module, variable = COMMANDS[name]
    try:
        command: click.Command = getattr(import_module(module), variable)
    except Exception as error:
        if module.partition(".")[0] != LABORATORY:
            raise
        is_absent = isinstance(error, ModuleNotFoundError) and error.name in (LABORATORY, module)
        return _laboratory_command(name, "" if is_absent else f"{type(error).__name__}: {error}")
    return command


def _laboratory_command(name: str, why: str) -> click.Command:
    """Return a command with advice for installing the laboratory.

    why: the error of an installed laboratory that cannot be imported; empty: not installed.
    """

    @click.command(
        name,
        short_help="Published studies of training I/O (pip install penstock-lab).",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def missing(words: tuple[str, ...]) -> None:
        """Published studies of training I/O, slow tiers, data sets: the package penstock-lab.

        \b
          pip install penstock-lab
        """
        if why:
            raise MissingDependency(
                f"the installed penstock-lab cannot be imported ({why}): install the release of "
                f"this Penstock: pip install penstock-lab=={metadata.version('penstock')}"
            )
        raise MissingDependency(
            f"penstock {name} is in a package of its own: pip install penstock-lab"
        )

    return missing


@click.group(
    cls=_Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Completion in bash: eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"; '
    "zsh and fish: zsh_source, fish_source.",
)
@click.version_option(package_name="penstock", message="penstock %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Record the I/O of a training job, and explain the time that the job waits for it.

    \b
      penstock run python train.py            record, train, report
      penstock report penstock-runs/NAME      the report again
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command("version")
def version_command() -> None:
    """Print the version."""
    click.echo(f"penstock {version()}")
