"""The cost of a recorded call in C: pread on one and on eight threads, and open + read + close of
small files.

Every event is kept and the log is on disk; the read files are hot and in memory, the recorder's
worst case.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bars import ROOT, Bar, Pairs, output, paired, pairs, report, scratch

import penstock
from penstock_lab.control import darshan_library, kept_by_darshan

PAIRS = 31
PREADS = 300_000  # a round: an eighth of a second
SMALL_FILES = 20_000
EVENT_BYTES = 32
LIBRARY = Path(penstock.__file__).with_name("librec.so")
PEER_CALLS = 50_000  # strace costs some 100 us a call

# Measured elsewhere on such a machine: Darshan adds 195 ns to a pread on one thread and 805 on
# eight (253 and 1,092 with all events), dftracer 3,140 and 3,882; to open + read + close Darshan
# 1,873 with complete records and dftracer 10,000.  Two reads of the clock are 17 ns of ours.
PREAD_NS = 40
SMALL_NS = 300


def main() -> list[Bar]:
    program = scratch("overhead") / "overhead"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-Wall", "-pthread", "-o", program, source, "-ldl"], check=True)
    memory = Path("/dev/shm/penstock-bench")
    shutil.rmtree(memory, ignore_errors=True)
    memory.mkdir()
    try:
        return [*_pread(program, memory), *_small(program, memory), *_peers(program, memory)]
    finally:
        shutil.rmtree(memory)


def _pread(program: Path, memory: Path) -> list[Bar]:
    data = memory / "data"
    data.write_bytes(bytes(64 << 20))
    bars = []
    for threads in (1, 8):
        measured = _in_process([program, "pread", data, PREADS, threads], PREADS)
        what = f"pread of 4 KiB, {threads} thread{'s' if threads > 1 else ''}"
        bars.append(_bar(what, PREAD_NS, measured))
    return bars


def _small(program: Path, memory: Path) -> list[Bar]:
    folder = memory / "small"
    folder.mkdir()
    for i in range(SMALL_FILES):
        (folder / str(i)).write_bytes(bytes(4096))
    measured = _in_process([program, "small", folder, SMALL_FILES, 1], 3 * SMALL_FILES)
    what = f"open + read + close of {SMALL_FILES:,} files, the three together"
    return [_bar(what, SMALL_NS, measured, n=3)]


def _in_process(work: Sequence[object], calls: int) -> Pairs:
    """Rounds without and with a window alternate in one process; every event must be on disk."""
    folder = scratch("overhead") / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rounds = output(list(map(str, [*work, LIBRARY, folder, PAIRS]))).split()
    kept = sum(path.stat().st_blocks * 512 for path in folder.glob("*.events"))
    shutil.rmtree(folder)
    if kept < PAIRS * calls * EVENT_BYTES:
        raise SystemExit(f"{kept} bytes of log for {PAIRS * calls} calls: events were not kept")
    return paired(list(map(float, rounds)))


def _bar(what: str, limit_ns: float, measured: Pairs, n: int = 1) -> Bar:
    added, low, high = (n * ns for ns in (measured.difference, *measured.spread))
    return Bar(
        what=f"{what}: added",
        bar=f"≤ {limit_ns} ns",
        measured=f"+{added:.0f} ns ({low:.0f} to {high:.0f}), ×{measured.ratio:.2f}",
        is_met=added <= limit_ns,
        command="python lab/benchmarks/overhead.py",
    )


def _plain(work: Sequence[str]) -> Callable[[], float]:
    return lambda: float(output(work).split()[-1])


def _peers(program: Path, memory: Path) -> list[Bar]:
    """Measure equal calls under comparable tools, where installed."""
    data, small = str(memory / "data"), str(memory / "small")
    works = [
        ("pread, 1 thread", [str(program), "pread", data, str(PEER_CALLS), "1"], 1),
        ("pread, 8 threads", [str(program), "pread", data, str(PEER_CALLS), "8"], 1),
        ("open + read + close", [str(program), "small", small, str(SMALL_FILES), "1"], 3),
    ]
    bars = []
    if shutil.which("strace"):
        what, work, n = works[0]
        traced = _plain(["strace", "-f", "-o", "/dev/null", *work])
        bars.append(_peer("strace -f", what, pairs(_plain(work), traced, 3), n))
    for name, traced_by in (("dftracer, preloaded", _dftracer), ("Darshan, preloaded", _darshan)):
        for what, work, n in works:
            traced = traced_by(work)
            if traced is not None:
                bars.append(_peer(name, what, pairs(_plain(work), traced, 5), n))
    return bars


def _dftracer(work: list[str]) -> Callable[[], float] | None:
    library = _dftracer_library()
    if library is None:
        return None
    folder = scratch("dftracer")
    environment = {
        "LD_PRELOAD": str(library),
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": "PRELOAD",
        "DFTRACER_LOG_FILE": str(folder / "log"),
        "DFTRACER_DATA_DIR": "all",
    }

    def traced() -> float:
        ns = float(output(work, environment).split()[-1])
        if not any(path.stat().st_size > 1000 for path in folder.iterdir()):
            raise SystemExit("dftracer wrote nothing: its figure would mean nothing")
        shutil.rmtree(folder)
        folder.mkdir()
        return ns

    return traced


def _dftracer_library() -> Path | None:
    """Return the library from `make bench`, in a separate environment, as dftracer brings many
    packages."""
    libraries = sorted((ROOT / "build" / "peers").glob("**/libdftracer_preload.so"))
    return libraries[0] if libraries else None


def _darshan(work: list[str]) -> Callable[[], float] | None:
    """Count each file as Darshan does, with room for every file, without the list of all calls."""
    library = darshan_library()
    if not library:
        return None
    folder = scratch("darshan")
    log, configuration = folder / "log.darshan", folder / "configuration"
    configuration.write_text(
        f"MAX_RECORDS {2 * SMALL_FILES} POSIX\nMODMEM 64\nNAMEMEM 16\nNAME_INCLUDE ^/dev/shm *\n"
    )
    environment = {
        "LD_PRELOAD": library,
        "DARSHAN_ENABLE_NONMPI": "1",
        "DARSHAN_LOGFILE": str(log),
        "DARSHAN_CONFIG_PATH": str(configuration),
    }

    def traced() -> float:
        ns = float(output(work, environment).split()[-1])
        kept = kept_by_darshan(log, Path("/dev/shm"))
        if kept["files"] < (SMALL_FILES if "small" in work else 1) or kept["is_partial"]:
            raise SystemExit(f"Darshan kept {kept}: its figure would mean nothing")
        log.unlink()
        return ns

    return traced


def _peer(name: str, what: str, measured: Pairs, n: int) -> Bar:
    return Bar(
        what=f"for comparison, {name}: {what}",
        bar="–",
        measured=f"+{n * measured.difference:,.0f} ns, ×{measured.ratio:.2f}",
        is_met=None,
        command="python lab/benchmarks/overhead.py",
    )


if __name__ == "__main__":
    report(main())
