"""Verify against the rate of the tier, and the drain against a bare copy.

    python lab/benchmarks/save.py          SIZE_MB=220 for the smaller of the two states

Verify reads the checkpoint from the device, with the pages evicted before the time begins; so does
the ceiling, with the file and in the minute of verify.  The drain is compared with the necessary
work: read, write past the page cache, fsync, read back.
"""

import mmap
import os
import shutil
import sys
import time
from pathlib import Path

from bars import Bar, pairs, report, scratch

from penstock.places import tiers
from penstock.places.stores import LocalStore
from penstock.save.commit import begin, commit
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.find.tiermarks import DRAINS_TO
from penstock.save.verify import verify

__all__ = ["main"]

COMMAND = "python lab/benchmarks/save.py"
SIZE_BYTES = int(os.environ.get("SIZE_MB", "1070")) * 10**6  # the larger of the two states measured
BLOCK_BYTES = 4 << 20
LEAST_SHARE = 0.8  # of the tier's read ceiling: the bar
REPETITIONS = 5


def main() -> list[Bar]:
    folder = scratch("save")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "fast").mkdir(parents=True)
    part = begin(folder / "fast", 1)
    blocks = SIZE_BYTES // BLOCK_BYTES
    part.write("model.pt", (os.urandom(BLOCK_BYTES) for _ in range(blocks)))
    path = commit(part) / "model.pt"
    rows = [_verify_row(folder / "fast", path), _drain_row(folder, path)]
    shutil.rmtree(folder)
    return rows


def _verify_row(tier: Path, path: Path) -> Bar:
    def ceiling_s() -> float:
        ceilings = tiers.read_ceiling([path], 2.0, orders=["sequential"])
        return path.stat().st_size / max(ceiling.bandwidth_bps for ceiling in ceilings)

    def verify_s() -> float:
        (checkpoint,) = find(LocalStore(tier))
        tiers.evict(path)
        begun_s = time.perf_counter()
        verdict = verify(checkpoint, "full")
        took_s = time.perf_counter() - begun_s
        if not verdict.is_whole or verdict.checked_bytes != checkpoint.size_bytes:
            raise SystemExit(f"{path}: {verdict}")
        return took_s

    measured = pairs(ceiling_s, verify_s, REPETITIONS)
    share = 1 / measured.ratio
    rate = path.stat().st_size / sorted(measured.on)[len(measured.on) // 2] / 1e6
    return Bar(
        "verify --full, cold, against the tier's read ceiling", f"≥ {LEAST_SHARE} ×",
        f"{share:.2f} × ({rate:,.0f} MB/s)", share >= LEAST_SHARE, COMMAND,
    )  # fmt: skip


def _drain_row(folder: Path, path: Path) -> Bar:
    def bare_s() -> float:
        copy = folder / "copy"
        copy.unlink(missing_ok=True)
        begun_s = time.perf_counter()
        _copy(path, copy)
        took_s = time.perf_counter() - begun_s
        copy.unlink()
        return took_s

    def drain_s() -> float:
        shutil.rmtree(folder / "slow", ignore_errors=True)
        (folder / "fast" / DRAINS_TO).unlink(missing_ok=True)  # to begin anew there
        begun_s = time.perf_counter()
        with Drainer(folder / "fast", folder / "slow", DrainSettings(settle_s=0)) as working:
            failed = working.once()
        if failed:
            raise SystemExit(str(failed))
        return time.perf_counter() - begun_s

    measured = pairs(bare_s, drain_s, REPETITIONS)
    low, high = measured.ratio_spread
    return Bar(
        "drain, verified: its time / read + O_DIRECT write + fsync + read back, one by one", "–",
        f"{measured.ratio:.2f} × ({low:.2f} to {high:.2f})", None, COMMAND,
    )  # fmt: skip


def _copy(source: Path, dest: Path) -> None:
    block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    reading = os.open(source, os.O_RDONLY)
    writing = os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    place = 0
    while count := os.preadv(reading, [block], place):
        os.pwrite(writing, block[:count], place)
        place += count
    os.fsync(writing)
    os.close(reading)
    os.close(writing)
    tiers.evict(dest, True)
    with dest.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


if __name__ == "__main__":
    report(main())
    sys.exit(0)
