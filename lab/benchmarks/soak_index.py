"""LMDBs of random histories, damaged at random, and beside writers, until the time is over.

    python lab/benchmarks/soak_index.py [SECONDS]      default: ten minutes

A reader may do as tests/test_feed_index_lmdb.py demands: return the right records, or raise a
FeedError with the file's name.  The first difference ends the soak with the folder of the
difference.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from bars import ROOT, scratch

sys.path.insert(0, str(ROOT / "tests"))

import test_feed_index_lmdb as reading
from penstock.feed import verify
from penstock.feed.index import open_index

HARMED_EACH = 300
STRUCTURE_BYTES = 80  # at the head of a page: the header and the first offsets of nodes


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    folder = scratch("soak-feed")
    end_s = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    while time.monotonic() < end_s:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        truth = history(folder, chance)
        damage(folder, truth, chance, counts)
        writer(folder, chance, counts)
        print(f"{dict(counts)}, {end_s - time.monotonic():.0f} s left", flush=True)
    shutil.rmtree(folder)
    print(f"{dict(counts)}: no difference")


def history(folder: Path, chance: random.Random) -> dict[bytes, bytes]:
    truth = reading.written(
        folder / "set", chance.randrange(1 << 30), chance.choice(reading.VERSIONS),
        n=chance.choice([20, 400, 2000]), rounds=chance.choice([1, 10, 60]),
    )  # fmt: skip
    records = reading.records(open_index(folder / "set", cache=False))
    expect(folder, records == truth and list(records) == sorted(truth), "the records are others")
    expect(folder, not verify.check(folder / "set").problems, "verify sees a problem in it")
    return truth


def damage(
    folder: Path, truth: dict[bytes, bytes], chance: random.Random, counts: Counter[str]
) -> None:
    whole = (folder / "set" / "data.mdb").read_bytes()
    path = folder / "harmed.mdb"
    for _ in range(HARMED_EACH):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            if chance.random() < 0.8:
                at = at // 4096 * 4096 + chance.randrange(STRUCTURE_BYTES)
            for place in range(at, min(len(data), at + chance.choice([1, 2, 4, 8]))):
                data[place] = chance.choice([0, 255, chance.randrange(256), data[place] ^ 1])
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        for look in (reading.all_places_in, reading.all_records_in):
            said = reading.said_by(look, path, truth)
            expect(folder, not said or str(path) in said, f"an error without the file: {said}")
            counts["refused" if said else "read"] += 1


def writer(folder: Path, chance: random.Random, counts: Counter[str]) -> None:
    program, there = folder / "writer.py", folder / "written"
    program.write_text(reading.WRITER)
    command = [sys.executable, program, there, "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with reading.ours.open(there) as env:
            while process.poll() is None:
                for said in (
                    reading.said_by(reading.by_index, there),
                    reading.said_by(reading.by_transaction, env),
                ):
                    counts["overtaken" if said else "consistent"] += 1


def expect(folder: Path, is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise SystemExit(f"{folder}: {otherwise}")


if __name__ == "__main__":
    main()
