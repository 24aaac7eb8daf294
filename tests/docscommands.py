"""The commands on the pages of the documentation, and how a test runs them.

A block of commands is indented or fenced as `sh`, and its first line begins with a program's name.
Blocks that show a screen, a file, a synopsis or Python are not commands.

A command runs in a shell.  A command of ASKING, whose words have no meaning for a shell, runs in
the process of the test: there a run is measured once for all commands that ask about it, as the
measuring is most of each command's time.  For the same reason `run` and `attach` have -q except
where the test reads the report at the end.
"""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
PROGRAMS = (
    *("claude", "docker", "make", "mkdir", "mpirun", "penstock", "pip", "python", "python3", "rm"),
    *("srun", "torchrun"),
)
BEGINS = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(PROGRAMS)}) |[A-Z]+=(?:/|\$\()")
SYNOPSIS = re.compile(r"[^']* \[-")
ASKING = (
    *("report", "compare", "check", "ceiling", "whatif", "predict", "sql", "timeline", "export"),
    *("import", "gather", "reduce", "runs", "feed", "tiers", "stage"),
)
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "NO_MKDOCS_2_WARNING": "1",
}
# Beside other programs a limit may be exceeded, or not be judged.
JUDGED = (0, 1, 3)


def pages() -> list[str]:
    """Return the pages' names: README.md and those of docs."""
    return ["README.md", *sorted(path.name for path in (ROOT / "docs").glob("*.md"))]


def text_of(page: str) -> str:
    return (ROOT / page if page == "README.md" else ROOT / "docs" / page).read_text()


def blocks(page: str) -> list[list[str]]:
    """Return the blocks of commands of a page, in order.

    A command has the lines that continue it.
    """
    text = re.sub(
        r"```(\w*).*?\n(.*?)```",
        lambda fenced: textwrap.indent(fenced[2], "    ") if fenced[1] == "sh" else "",
        text_of(page), flags=re.DOTALL,
    )  # fmt: skip
    indented = map(textwrap.dedent, re.findall(r"(?:^    .*\n)+", text, re.MULTILINE))
    return [commands(block) for block in indented if is_commands(block)]


def is_commands(block: str) -> bool:
    return bool(BEGINS.match(block)) and not SYNOPSIS.match(block)


def commands(block: str) -> list[str]:
    listed: list[str] = []
    for line in block.splitlines():
        if listed and (listed[-1].endswith("\\") or listed[-1].count('"') % 2):
            listed[-1] += "\n" + line
        elif line.strip() and not line.startswith("#"):
            listed.append(line)
    return listed


def bare(command: str) -> str:
    """Return the command without its quoted words and the remark."""
    return re.sub(r"\s#.*", "", re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command))


def is_for_a_shell(command: str) -> bool:
    """Return True if a shell does more with the command than to split it into words."""
    return bool(re.match(r"[A-Z_]+=", command) or re.search(r"[]$&|;<>*?{}()~`\\[]", bare(command)))


def needs_one_shell(block: list[str]) -> bool:
    """Return True if a command has a variable or a job for the next command."""
    return any(re.search(r"&\s*$|^[A-Z_]+=\S+(\s+[A-Z_]+=\S+)*\s*$", bare(line)) for line in block)


def run_block(
    block: list[str],
    folder: Path,
    environ: Mapping[str, str] = ENVIRONMENT,
    placed: Callable[[str], str] = str,
    is_quiet: bool = True,
) -> str:
    """Run the commands, each with its paths of this test; return the screen."""
    if is_quiet:
        block = [quiet(command) for command in block]
    if needs_one_shell(block):
        return in_shell("\n".join(map(placed, block)), folder, environ)
    return "".join(run(placed(command), folder, environ) for command in block)


def quiet(command: str) -> str:
    return re.sub(r"^((?:[A-Z_]+=\S+ )*penstock (?:run|attach) )(?!-q)", r"\1-q ", command)


def run(command: str, folder: Path, environ: Mapping[str, str]) -> str:
    if is_for_a_shell(command):
        return in_shell(command, folder, environ)
    words = shlex.split(command, comments=True)
    if words[0] == "penstock" and words[1] in ASKING:
        return in_process(words, folder, environ)
    return in_shell(command, folder, environ)


def in_shell(script: str, folder: Path, environ: Mapping[str, str]) -> str:
    ended = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=folder, env=environ,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, (script, ended.stdout[-2000:], ended.stderr[-2000:])
    return ended.stdout + ended.stderr


def until_ctrl_c(
    command: str, folder: Path, environ: Mapping[str, str], is_done: Callable[[], bool]
) -> None:
    """Run a command that goes on until Ctrl-C; press it when the command's work is done."""
    log = folder / "until-ctrl-c"
    with log.open("w") as screen, subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=environ,
        stdin=subprocess.DEVNULL, stdout=screen, stderr=screen,
    ) as running:  # fmt: skip
        try:
            end = time.monotonic() + 300
            while running.poll() is None and not is_done():
                assert time.monotonic() < end, (command, log.read_text())
                time.sleep(0.1)
            running.send_signal(signal.SIGINT)
            status = running.wait(300)
        finally:
            running.kill()
    assert is_done(), (command, log.read_text())
    assert status in (0, 130), (command, status, log.read_text())


def in_process(words: list[str], folder: Path, environ: Mapping[str, str]) -> str:
    from penstock import cli

    screen = io.StringIO()
    status: Any = 0
    with (
        mock.patch.dict(os.environ, environ, clear=True), mock.patch.object(sys, "argv", words),
        contextlib.chdir(folder), measured_once(),
        contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen),
    ):  # fmt: skip
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code or 0
    allowed = JUDGED if words[1] == "check" else (0,)
    assert status in allowed, (words, status, screen.getvalue()[-2000:])
    return screen.getvalue()


MEASURED: dict[object, Any] = {}


@contextlib.contextmanager
def measured_once() -> Iterator[None]:
    """Measure a run again only if a file of the run, what queries made apart, is another one."""
    from penstock.explain import measures, summary
    from penstock.trial import ceiling, remote, whatif

    measure = measures.measure

    def kept(run: Any) -> Any:
        folder = getattr(run, "folder", None)
        if folder is None:
            return measure(run)
        sizes = [
            (path.name, path.stat().st_size)
            for path in sorted(folder.iterdir()) if path.name not in (summary.NAME, "tables")
        ]  # fmt: skip
        key = (repr(sizes), run.start_unix_ns)
        if key not in MEASURED:
            MEASURED[key] = measure(run)
        return MEASURED[key]

    with contextlib.ExitStack() as patched:
        for module in (measures, ceiling, remote, whatif):
            patched.enter_context(mock.patch.object(module, "measure", kept))
        yield
