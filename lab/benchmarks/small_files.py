"""A benchmark: a checkpoint of many small files, through the burst buffer and by other tools.

    python lab/benchmarks/small_files.py drain|folder|write [N] [ROUNDS]    default: 20,000 files, 4
                                                                            rounds

Drain: all copies go from /dev/shm to BENCH_FOLDER (build/bench) and are as durable as the drain's
copy: `cp -r`, rsync (where installed) and 16 threads, each followed by one sync of the target file
system.  Only the drain reads each file back, renames each file after the sync, and replaces and
removes a link per file.  A ratio is the shortest time of the other tools as a share of the drain's
time in one round: a higher ratio is better.

Folder: the same comparison for a checkpoint in a folder of a fast tier, copied as by `penstock save
drain FAST SLOW`, without the start of an interpreter.  Only the drain looks for checkpoints before
and after the copy, checks each file by the format, reads each copy back, and writes a manifest with
a checksum of each file.  The second drain finds the same folder, unchanged.

Writing: a program writes the files without Penstock, under `penstock run`, and under `penstock run
--burst-buffer`, in turn; the time is the program's own, from its first open to its last close.  The
ratios compare each round's time with the time without Penstock: a lower ratio is better.

The ways change their order from round to round; ratios are within a round, and the median counts.

No file is removed before the end of the benchmark: ext4 takes several times as long to create a
file in a block group in which inodes were freed in the last minutes.  A run in the minutes
after another run, or after tests, compares the ways on such a file system: BENCH_FOLDER on a file
system of its own shows the ways alone.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bars import PENSTOCK, Bar, report, scratch

from penstock.save.burst.home import Burst
from penstock.save.burst.tier import prepare
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings

__all__ = ["main"]

THREADS = 16
RUN_DIGITS = "0b0b0b"  # the run that made a file, as native/burst_work.c has it in names
INLINE_BYTES = 59  # as in native/burst.c
COMMAND = "python lab/benchmarks/small_files.py {}"
DRAIN, AGAIN = "the drain", "a second drain"
PLAIN, RUN, BURST = "plain", "penstock run", "penstock run --burst-buffer"
WRITER = """
import sys, time
folder, n_files, data = sys.argv[1], int(sys.argv[2]), bytes(258)
begun_s, cpu_s = time.perf_counter(), time.process_time()
for number in range(n_files):
    with open(f"{folder}/part-{number:05d}.pt", "wb") as file:
        file.write(data)
print("took", time.perf_counter() - begun_s, time.process_time() - cpu_s)
"""


class CopyCost(NamedTuple):
    wall_s: float
    cpu_s: float


def main(part: str, n_files: int = 20_000, rounds: int = 4) -> list[Bar]:
    round_of, bars_of = {
        "drain": (_drain_round, _drain_bars),
        "folder": (_folder_round, _folder_bars),
        "write": (_write_round, _write_bars),
    }[part]
    target = scratch(f"small-files-{part}")
    shutil.rmtree(target, ignore_errors=True)
    tiers = [Path(tempfile.mkdtemp(dir="/dev/shm")) for _ in range(rounds)]
    try:
        took = [
            round_of(target / f"{turn}", tier, n_files, turn) for turn, tier in enumerate(tiers)
        ]
    finally:
        subprocess.run(["rm", "-rf", *tiers, target])  # hundreds of thousands of files
    return bars_of(took, f"{n_files:,} files of 258 B", n_files)


def _in_turn(ways: dict[str, Any], turn: int) -> list[tuple[str, Any]]:
    """Return the ways in another order for each round, so that each way sometimes runs first."""
    items = list(ways.items())
    start = turn % len(items)
    return items[start:] + items[:start]


def _folder_bars(rounds: list[dict[str, CopyCost]], what: str, n_files: int) -> list[Bar]:
    again = Bar(
        f"{AGAIN} of the folder, unchanged",
        "–",
        _each(rounds, AGAIN, n_files),
        None,
        COMMAND.format("folder"),
    )
    rounds = [{name: cost for name, cost in took.items() if name != AGAIN} for took in rounds]
    return [*_drain_bars(rounds, f"a folder of {what}", n_files, "folder"), again]


def _drain_bars(
    rounds: list[dict[str, CopyCost]], what: str, n_files: int, part: str = "drain"
) -> list[Bar]:
    shares, of_cpu = list[float](), list[float]()
    for took in rounds:
        best = min(
            (usage for name, usage in took.items() if name != DRAIN), key=lambda usage: usage.wall_s
        )
        shares.append(best.wall_s / took[DRAIN].wall_s)
        of_cpu.append(best.cpu_s / took[DRAIN].cpu_s)
    share = statistics.median(shares)
    cpu = f"CPU {statistics.median(of_cpu):.2f}"
    said = f"{share:.2f} ({_listed(shares)}), {cpu}; {_each(rounds, DRAIN, n_files)}"
    bar = Bar(
        f"drain of {what}: best of the others / drain",
        "≥ 0.8",
        said,
        share >= 0.8,
        COMMAND.format(part),
    )
    others = [name for name in rounds[0] if name != DRAIN]
    return [
        bar,
        *(
            Bar(
                f"for comparison, {name}{_version(name)}",
                "–",
                _each(rounds, name, n_files),
                None,
                COMMAND.format(part),
            )
            for name in others
        ),
    ]


def _write_bars(rounds: list[dict[str, CopyCost]], what: str, n_files: int) -> list[Bar]:
    bars = []
    for name in (RUN, BURST):
        ratios = [took[name].wall_s / took[PLAIN].wall_s for took in rounds]
        of_cpu = statistics.median(took[name].cpu_s / took[PLAIN].cpu_s for took in rounds)
        ratio = statistics.median(ratios)
        said = f"{ratio:.2f} ({_listed(ratios)}), CPU {of_cpu:.2f}; {_each(rounds, name, n_files)}"
        is_met = ratio <= 1.3 if name == BURST else None
        bar = "≤ 1.3" if name == BURST else "–"
        bars.append(
            Bar(f"{what} written under {name} / plain", bar, said, is_met, COMMAND.format("write"))
        )
    plain = _each(rounds, PLAIN, n_files)
    return [*bars, Bar(f"{what} written, plain", "–", plain, None, COMMAND.format("write"))]


def _listed(numbers: list[float]) -> str:
    return " ".join(f"{number:.2f}" for number in numbers)


def _each(rounds: list[dict[str, CopyCost]], name: str, n_files: int) -> str:
    """Microseconds a file, and of CPU."""
    wall = statistics.median(took[name].wall_s for took in rounds) / n_files * 1e6
    cpu = statistics.median(took[name].cpu_s for took in rounds) / n_files * 1e6
    return f"{wall:,.0f} µs a file, {cpu:,.0f} µs of CPU"


def _version(name: str) -> str:
    tool = name.partition(" ")[0].rstrip(",")
    if not shutil.which(tool):
        return ""
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)
    return f" ({' '.join(said.stdout.splitlines()[0].split()[:4])})"


# --- drain ----------------------------------------------------------------------------------------


def _drain_round(target: Path, tier: Path, n_files: int, turn: int) -> dict[str, CopyCost]:
    source = tier / "source"
    return _copy_round(
        target, source, n_files, turn,
        lambda to: _links(source, tier, to), lambda to: _drain(tier, to),
    )  # fmt: skip


def _folder_round(target: Path, tier: Path, n_files: int, turn: int) -> dict[str, CopyCost]:
    slow = Path()

    def drain(to: Path) -> None:
        nonlocal slow
        slow = to
        _drain_folder(tier, to)

    took = _copy_round(target, tier / "checkpoint-100", n_files, turn, lambda to: None, drain)
    begun_s, cpu_s = time.perf_counter(), _cpu_s()
    _drain_folder(tier, slow)
    return {**took, AGAIN: CopyCost(time.perf_counter() - begun_s, _cpu_s() - cpu_s)}


def _drain_folder(tier: Path, to: Path) -> None:
    with Drainer(tier, to, DrainSettings()) as drain:
        assert drain.once() == []
    assert (to / "checkpoint-100/penstock-manifest.json").exists()


def _copy_round(
    target: Path,
    source: Path,
    n_files: int,
    turn: int,
    prepared: Callable[[Path], None],
    drain: Callable[[Path], None],
) -> dict[str, CopyCost]:
    """Return the costs of each way.  prepared: called before the drain, outside its time."""
    source.mkdir()
    for number in range(n_files):
        (source / f"part-{number:05d}.pt").write_bytes(b"pk" + number.to_bytes(4, "little") * 64)
    ways: dict[str, Callable[[Path], None]] = {
        "cp -r, sync": lambda to: _run_and_sync(["cp", "-r", source, to], to),
        "16 threads, sync": lambda to: _threads(source, to),
        DRAIN: drain,
    }
    if shutil.which("rsync"):
        ways = {"rsync, sync": lambda to: _run_and_sync(["rsync", "-r", source, to], to), **ways}
    took_s = {}
    for name, way in _in_turn(ways, turn):
        to = target / name.replace(" ", "-")
        to.mkdir(parents=True)
        if name == DRAIN:
            prepared(to)
        subprocess.run(["sync", "-f", to], check=True)
        begun_s, cpu_s = time.perf_counter(), _cpu_s()
        way(to)
        took_s[name] = CopyCost(time.perf_counter() - begun_s, _cpu_s() - cpu_s)
        paths = [path for path in to.rglob("part-*.pt") if not path.is_symlink()]
        assert len(paths) == n_files, (name, len(paths))
    return took_s


def _cpu_s() -> float:
    """Return the CPU time of this process and of all started tools."""
    return sum(os.times()[:4])


def _run_and_sync(words: list[str | Path], to: Path) -> None:
    subprocess.run(words, check=True)
    subprocess.run(["sync", "-f", to], check=True)


def _threads(source: Path, to: Path) -> None:
    def copy(path: Path) -> None:
        data = path.read_bytes()
        with (to / path.name).open("wb", buffering=0) as file:
            file.write(data)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(copy, source.iterdir()))
    subprocess.run(["sync", "-f", to], check=True)


def _links(source: Path, tier: Path, to: Path) -> None:
    """Create files and links as after a program's writes through the burst buffer.  A name on the
    tier is shortened if the link's target would not fit into the link's inode."""
    prepare(tier)
    data = tier / "burst/data"
    for number, path in enumerate(sorted(source.iterdir())):
        name = f"{time.time_ns():016x}{RUN_DIGITS}{number & 0xFF:02x}-{path.name}"
        room = INLINE_BYTES - len(f"{data}/{name[:25]}~")
        if len(f"{data}/{name}") > INLINE_BYTES and room > 0:
            name = f"{name[:25]}~{path.name[-room:]}"
        (tier / "burst/home" / name).symlink_to(to / path.name)
        shutil.copyfile(path, data / name)
        (to / path.name).symlink_to(data / name)


def _drain(tier: Path, to: Path) -> None:
    with Burst(tier, DrainSettings()) as drain:
        assert drain.once() == []
    assert not any((tier / "burst/data").iterdir())
    assert to.is_dir()


# --- writing --------------------------------------------------------------------------------------


def _write_round(target: Path, tier: Path, n_files: int, turn: int) -> dict[str, CopyCost]:
    run = [PENSTOCK, "run", "-o"]
    ways: dict[str, list[str | Path]] = {
        PLAIN: [],
        RUN: [*run, target / "run"],
        BURST: [*run, target / "burst", "--burst-buffer", tier],
    }
    took_s = {}
    for name, words in _in_turn(ways, turn):
        to = target / f"written-{len(took_s)}"
        to.mkdir(parents=True)
        program = [sys.executable, "-c", WRITER, to, str(n_files)]
        said = subprocess.run([*words, *program], capture_output=True, text=True, check=True)
        [line] = [line for line in said.stdout.splitlines() if line.startswith("took ")]
        took_s[name] = CopyCost(*map(float, line.split()[1:]))
        assert len(list(to.glob("part-*.pt"))) == n_files, name
        assert not any(path.is_symlink() for path in to.iterdir()), name
    return took_s


if __name__ == "__main__":
    report(main(sys.argv[1], *map(int, sys.argv[2:])))
