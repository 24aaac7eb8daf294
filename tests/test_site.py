"""The documentation as a site: it builds without a warning, names every page, and the commands of
its guides run as written."""

import re
import subprocess
from pathlib import Path

import pytest

from docscommands import ENVIRONMENT, blocks, run_block

ROOT = Path(__file__).parents[1]
# In this order: a page uses the files and runs that the pages before made.
GUIDES = ("tutorial.md", "slow-loader.md", "stalling-checkpoints.md", "ci.md")
TITLED = re.compile(r'```python title="([\w.]+)"\n(.*?)```', re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="no MkDocs: pip install 'penstock[site]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        ["mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    pages -= {Path("STATE.md"), Path("experiments/README.md")}
    pages = {page for page in pages if len(page.parts) <= 2}  # deeper: data of experiments
    lacking = [page for page in pages if not (site / page).with_suffix(".html").exists()]
    assert lacking == []
    assert (site / "experiments" / "index.html").exists()


def test_the_site_has_each_command_and_each_name(site: Path) -> None:
    import penstock
    from penstock.cli import COMMANDS

    commands = (site / "commands.html").read_text()
    assert [name for name in COMMANDS if f'id="penstock-{name}"' not in commands] == []
    names = (site / "api.html").read_text()
    assert [name for name in penstock.__all__ if f'id="penstock.{name}"' not in names] == []


def test_a_page_of_the_site_asks_no_other_server(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text()
        )
        assert loaded == [], page


RECORDING = re.compile(r"penstock run (?:-q )?-o (\S+) (python .*)")


def copied(command: str, recorded: dict[str, str]) -> str:
    """Return the command, or the copying of an earlier recording of its program.

    recorded: the names of the recordings, by program; a new name is added.
    """
    match = RECORDING.fullmatch(command)
    if match is None:
        return command
    name, program = match.groups()
    if program not in recorded:
        recorded[program] = name
        return command
    first = recorded[program]
    return f"test {first} -ef {name} || cp -rT {first} {name}"


# Two minutes of the processor on a busy machine: four trainings, one of which decodes pictures.
@pytest.mark.slow
def test_every_command_of_the_guides_runs_as_written(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
    screens = dict[tuple[str, str], str]()
    recorded = dict[str, str]()
    for guide in GUIDES:
        text = (ROOT / "docs" / guide).read_text()
        for name, source in TITLED.findall(text):
            (tmp_path / name).write_text(source)
        assert blocks(guide), guide
        for block in blocks(guide):
            left = [copied(command, recorded) for command in block]
            # The test reads the report at the end of the first recording.
            is_quiet = guide != "tutorial.md"
            screens[guide, block[0]] = run_block(left, tmp_path, is_quiet=is_quiet)
    assert "INPUT BOUND" in screens["tutorial.md", "penstock run -o before python train.py gz"]
    before = screens["tutorial.md", "penstock report before"]
    assert "decoding on the CPU, not I/O (W2)" in before
    source = (tmp_path / "train.py").read_text().splitlines()
    named = {int(line) for line in re.findall(r"train\.py:(\d+)", before)}
    assert named <= {n for n, line in enumerate(source, 1) if "words" in line}
    assert named
    listed = screens["stalling-checkpoints.md", "mkdir -p fast weights"]
    assert all(f"model-{step}.pt" in listed for step in (1, 2, 3, 4))
