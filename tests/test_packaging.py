"""What is installed is what was meant: one wheel for every Python, and no need but libc."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import penstock
from fixtures import PENSTOCK

PACKAGE = Path(penstock.__file__).parent
RECORDER = PACKAGE / "librec.so"
READER = PACKAGE / "libfeed.so"
COPIER = PACKAGE / "libcopier.so"

if not PACKAGE.is_relative_to(sys.prefix):
    pytest.skip("penstock is imported from its sources, not installed", allow_module_level=True)


def tool(name: str, *arguments: str | Path) -> str:
    if not shutil.which(name):
        pytest.skip(f"there is no {name}: make setup-system")
    return subprocess.run([name, *arguments], check=True, capture_output=True, text=True).stdout


def test_one_wheel_serves_every_python_of_a_platform() -> None:
    wheel = metadata.distribution("penstock").read_text("WHEEL")
    assert wheel is not None
    assert re.findall(r"^Tag: (\S+)", wheel, re.MULTILINE)[0].startswith("py3-none-")
    assert "Root-Is-Purelib: false" in wheel


@pytest.mark.parametrize("library", [RECORDER, READER, COPIER], ids=lambda path: path.name)
def test_a_library_depends_on_libc_alone(library: Path) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d", library))
    # libdl and libpthread are libc's own parts before glibc 2.34.
    allowed = re.compile(r"(libc|libdl|libpthread|ld-linux[\w-]*)\.so\.\d")
    assert [name for name in needed if not allowed.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("library", "headers"),
    [(RECORDER, "*.h"), (READER, "feed/feed.h"), (COPIER, "copier/copier.h")],
    ids=["rec", "feed", "copier"],
)
def test_a_library_exports_its_interface_and_nothing_else(library: Path, headers: str) -> None:
    symbols = tool("nm", "-D", "--defined-only", library).split("\n")
    names = {line.split()[-1] for line in symbols if line}
    native = Path(__file__).parent.parent / "native"
    text = "".join(header.read_text() for header in sorted(native.glob(headers)))
    declared = set(re.findall(r"^[A-Z]+_API .*?\b(penstock_\w+)\(", text, re.MULTILINE))
    assert names == declared


def test_every_slot_of_the_recorder_is_bound_when_it_is_loaded() -> None:
    dynamic = tool("readelf", "-d", RECORDER)
    assert "BIND_NOW" in dynamic
    assert "GNU_RELRO" in tool("readelf", "-lW", RECORDER)


def test_the_recorder_needs_little_static_thread_memory() -> None:
    """Initial-exec thread-locals come out of a reserve of some 1.6 KiB that all libraries share."""
    segments = tool("readelf", "-lW", RECORDER)
    [size] = re.findall(r"^\s+TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+(0x\w+)", segments, re.MULTILINE)
    assert int(size, 16) <= 64


def test_a_citation_names_the_version_of_the_package() -> None:
    citation = (Path(__file__).parent.parent / "CITATION.cff").read_text()
    assert f"\nversion: {metadata.version('penstock')}\n" in citation


def test_the_command_and_the_package_agree_on_the_version() -> None:
    said = subprocess.run([PENSTOCK, "--version"], check=True, capture_output=True, text=True)
    assert said.stdout.split()[-1] == metadata.version("penstock")


def test_the_queries_are_installed() -> None:
    sources = Path(__file__).parent.parent / "src" / "penstock"
    installed = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.sql")}
    assert installed == {path.relative_to(sources) for path in sources.rglob("*.sql")}
    assert len({path.stem for path in installed}) == len(installed), "a name stands twice"


def test_what_the_views_need_beside_python_is_installed() -> None:
    sources = Path(__file__).parent.parent / "src" / "penstock" / "views"
    kinds = (".js", ".css", ".html")
    installed = {path.name for path in (PACKAGE / "views").iterdir() if path.suffix in kinds}
    assert installed == {path.name for path in sources.iterdir() if path.suffix in kinds}


def test_tensorboard_is_told_of_the_tab() -> None:
    [entry] = metadata.entry_points(group="tensorboard_plugins", name="penstock")
    assert entry.value == "penstock.interop.tensorboard:Plugin"
    pytest.importorskip("tensorboard")
    assert entry.load().plugin_name == "penstock"


@pytest.mark.parametrize(
    "line", ["from penstock.errors import GoneError", "import no_such_library"]
)
def test_a_laboratory_that_cannot_be_imported_breaks_its_own_command_alone(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "penstock_lab").mkdir()
    (tmp_path / "penstock_lab/__init__.py").touch()
    (tmp_path / "penstock_lab/cli.py").write_text(line)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def said(word: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "penstock", word]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout + done.stderr

    assert said("--help")[0] == 0
    assert said("nonsense")[0] == 2
    status, text = said("bench")
    assert status == 2
    assert line.rpartition(" ")[2] in text
    assert "pip install penstock-lab==" in text


def test_without_the_laboratory_its_command_says_how_to_install_it() -> None:
    program = (
        "import sys; sys.modules['penstock_lab'] = None; sys.argv[1:] = {}; "
        "from penstock.cli import main; main()"
    )
    for words in (["bench", "read", "somewhere", "--scale", "ci"], ["bench"]):
        done = subprocess.run(
            [sys.executable, "-c", program.format(words)], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "pip install penstock-lab" in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", program.format(["--help"])], capture_output=True, text=True
    )
    assert "penstock-lab" in done.stdout
