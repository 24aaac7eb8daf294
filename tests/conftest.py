"""Programs whose I/O is known, run under the recorder that is installed."""

import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

WORKLOADS = Path(__file__).parent / "workloads"
PENSTOCK = Path(sysconfig.get_path("scripts")) / "penstock"


def pytest_unconfigure() -> None:
    """Runs that a failed or cached fixture still holds are closed before DuckDB is taken down."""
    gc.collect()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder in which the programs run; what they touch below it is what is counted."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def recorded_command(tmp_path: Path, work: Path) -> Iterator[Callable[..., Any]]:
    """Runs a command under `penstock run` and opens the run that it leaves."""
    from penstock.run import open_run

    opened = ExitStack()

    def record(
        command: Sequence[str | Path],
        *,
        status: int = 0,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> Any:
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        finished = subprocess.run(
            [PENSTOCK, "run", "-q", "-o", folder, *options, "--", *command],
            cwd=work,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        said = f"{finished.stdout[-4000:]}\n{finished.stderr[-4000:]}"
        assert finished.returncode == status, f"status {finished.returncode}, not {status}:\n{said}"
        return opened.enter_context(open_run(folder))

    with opened:
        yield record


@pytest.fixture
def recorded(tmp_path: Path, recorded_command: Callable[..., Any]) -> Callable[..., Any]:
    """Runs Python source under `penstock run` and opens the run that it leaves."""

    def record(source: str, *, args: Sequence[str | Path] = (), **options: Any) -> Any:
        program = tmp_path / f"program-{len(list(tmp_path.glob('program-*')))}.py"
        program.write_text(textwrap.dedent(source))
        return recorded_command([sys.executable, program, *args], **options)

    return record


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles tests/workloads/NAME.c or .cc, each combination of flags once a session."""
    folder = tmp_path_factory.mktemp("workloads")
    built: dict[tuple[str, ...], Path] = {}

    def build(name: str, *flags: str) -> Path:
        key = (name, *flags)
        if key not in built:
            program = folder / f"{len(built)}" / Path(name).stem
            program.parent.mkdir()
            _compile(WORKLOADS / (name if "." in name else f"{name}.c"), program, flags)
            built[key] = program
        return built[key]

    return build


def _compile(source: Path, program: Path, flags: Sequence[str]) -> None:
    is_c = source.suffix == ".c"
    compiler = os.environ.get("CC", "cc") if is_c else os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}: make setup-system")
    standard = "-std=gnu11" if is_c else "-std=c++17"
    common = [standard, "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    # -ldl and -lrt: dlsym and aio_read are libc's only since glibc 2.34.
    command = [compiler, *common, "-o", program, source, *flags, "-ldl", "-lrt"]
    subprocess.run(command, check=True)


@pytest.fixture
def strace_counts(tmp_path: Path, work: Path) -> Callable[..., Any]:
    """Runs a command under strace; what it called, by path and class of call."""
    from counting import strace_calls

    if not _strace_works():
        pytest.skip("strace is missing or may not trace here: make setup-system")

    def count(command: Sequence[str | Path]) -> Any:
        return strace_calls(command, work, tmp_path / f"strace-{len(list(tmp_path.iterdir()))}")

    return count


def _strace_works() -> bool:
    if not shutil.which("strace"):
        return False
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True)
    return probe.returncode == 0
