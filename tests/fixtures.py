"""Programs whose I/O is known, run under the recorder that is installed."""

import fcntl
import gc
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

WORKLOADS = Path(__file__).parent / "workloads"
ALONE = "@alone"
# Set by `make thorough`: all repetitions of trials at random, and all programs of a kind.
THOROUGH = os.environ.get("PENSTOCK_THOROUGH") == "1"
MEASURED_AGAIN = 2  # a neighbour on the machine disturbs a measurement, not three of them
PENSTOCK = Path(sysconfig.get_path("scripts")) / "penstock"

# Begins a program that compiles nothing.  The first step of an optimizer imports PyTorch's compiler
# only to be left out of it: 4 s of CPU, as much again as the import of PyTorch.
UNCOMPILED = """
import sys, types
compiler = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda: None
compiler.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests run side by side with -n; those marked `alone` afterwards."""
    from sidebyside import SideBySide

    return SideBySide(ALONE, config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The mark `alone` shows in a test's id: what divides the tests knows nothing else of it."""
    if metafunc.definition.get_closest_marker("alone"):
        metafunc.fixturenames.append("_alone")
        metafunc.parametrize("_alone", [None], ids=[ALONE])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let a test marked alone measure again; leave tests marked thorough to `make thorough`.  In a
    worker: deal the tests, long ones first."""
    for item in items:
        if item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.flaky(reruns=MEASURED_AGAIN))
    if not THOROUGH:
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        from sidebyside import dealt

        items[:] = dealt(items, config.workerinput["workercount"])


def times(thorough: int) -> int:
    """Return the number of repetitions of a trial at random: a quarter without `make thorough`."""
    return thorough if THOROUGH else -(-thorough // 4)


def thorough(*values: Any, like: str) -> Any:
    """Return a parameter that only `make thorough` tries; like: what `make test` tries instead."""
    return pytest.param(*values, marks=[pytest.mark.thorough(like), pytest.mark.slow])


def kinds(values: Iterable[str], like: Mapping[str, str]) -> list[Any]:
    """Return the values as parameters; `make test` tries like[value] instead of a value in like."""
    return [thorough(value, like=like[value]) if value in like else value for value in values]


def needs(module: str) -> None:
    """Skip the test without a module that its programs import: to import it here takes seconds."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make test installs it")


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, as would all that the tests start."""
    settings.register_profile("penstock", deadline=None)  # a busy machine is slow, not wrong
    settings.load_profile("penstock")
    os.environ["PENSTOCK_PROGRESS"] = "off"  # a busy machine would put lines between the expected
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Runs that a failed or cached fixture still holds are closed before DuckDB is taken down."""
    gc.collect()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was run once more and passed failed before: how, stands nowhere else."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"RERUN {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-4000:])
        for title, text in report.sections:
            terminalreporter.write_line(f"{title}: {text[-1000:]}")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder in which the programs run; what they touch below it is what is counted."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    """Return an empty folder that stands for a fast tier."""
    folder = tmp_path / "fast"
    folder.mkdir()
    return folder


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """Return the path of a slow tier that is not there yet."""
    return tmp_path / "slow"


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[int], AbstractContextManager[Path]]:
    """Makes a disk of so many bytes."""

    @contextmanager
    def made(size_bytes: int) -> Iterator[Path]:
        folder = tmp_path / "small"
        folder.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder],
            capture_output=True,
        )
        if mounted.returncode:
            pytest.skip("a file system cannot be mounted here: needs root")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)

    return made


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A folder on overlayfs, as a container's root is: there folders have another device number
    than files."""
    if os.geteuid():
        pytest.skip("only root may mount an overlay")
    below, upper, merged = (tmp_path / f"overlay-{name}" for name in ("below", "upper", "merged"))
    for folder in (below, upper, merged):
        folder.mkdir()
    with ExitStack() as mounted:

        def mount(kind: str, at: Path, options: str) -> None:
            done = subprocess.run(
                ["mount", "-t", kind, "-o", options, kind, at], capture_output=True, text=True
            )
            if done.returncode:
                pytest.skip(f"no {kind} can be mounted here: {done.stderr.strip()}")
            mounted.callback(subprocess.run, ["umount", "-l", at], check=True)

        mount("tmpfs", upper, "size=64m")  # on another device than what lies below
        (upper / "data").mkdir()
        (upper / "work").mkdir()
        mount(
            "overlay",
            merged,
            f"lowerdir={below},upperdir={upper / 'data'},workdir={upper / 'work'}",
        )
        yield merged


@pytest.fixture
def recorded_command(tmp_path: Path, work: Path) -> Iterator[Callable[..., Any]]:
    """Runs a command under `penstock run` and opens the run that it leaves."""
    from penstock.runs.run import open_run

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
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a file or folder once a session, whichever worker comes first: made_once(key, make),
    where make(path) makes it.  Nobody writes to it afterwards."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
    folder.mkdir(exist_ok=True)

    def made(key: Sequence[str], make: Callable[[Path], object]) -> Path:
        name = hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]
        place = folder / name / Path(key[0]).stem
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                draft = folder / name / "draft" / place.name
                shutil.rmtree(draft.parent, ignore_errors=True)  # of one that failed
                draft.parent.mkdir(parents=True)
                make(draft)
                draft.rename(place)
        return place

    return made


@pytest.fixture(scope="session")
def workload(made_once: Callable[..., Path]) -> Callable[..., Path]:
    """Compiles tests/workloads/NAME.c or .cc, each combination of flags once a session."""

    def build(name: str, *flags: str) -> Path:
        source = WORKLOADS / (name if "." in name else f"{name}.c")
        return made_once((source.name, *flags), lambda program: _compile(source, program, flags))

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

    if not strace_works():
        pytest.skip("strace is missing or may not trace here: make setup-system")

    def count(command: Sequence[str | Path]) -> Any:
        return strace_calls(command, work, tmp_path / f"strace-{len(list(tmp_path.iterdir()))}")

    return count


def strace_works() -> bool:
    if not shutil.which("strace"):
        return False
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True)
    return probe.returncode == 0
