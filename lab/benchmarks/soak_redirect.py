"""Programs read staged files while others change the files: is a byte ever stale, or torn?

    python lab/benchmarks/soak_redirect.py [ROUNDS]      default: 2,000 rounds, some minutes

A file holds a single number, the version, over and over.  Readers run under `penstock run` with the
copies.  An unrecorded writer, so that nothing but the file itself shows a change, puts the next
version there: in place and with the old size and time, by rename, by removing and making the file
again; the writer also stages, evicts and damages copies.  A round is a change and ten later reads
of each reader.  A reader knows the last version completed before the open and the last version
begun before the end of the read: the bytes must lie between.  SEED=N repeats the choices.
"""

import json
import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from stagedmap import STAGED_AT, Tier  # noqa: E402 - the tests' own writer of maps

FILES, READERS = 8, 2
WORDS = 1024  # 4 KiB: in a page, so that a write in place is seen whole or word by word
OLD_NS = 1_600_000_000_000_000_000
READS_A_ROUND = 10
STOP, READS, DONE, BEGUN = 0, 1, 1 + READERS, 1 + READERS + FILES
PAGE_BYTES = 4096


class Page:
    """Numbers shared by all processes."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(PAGE_BYTES))
        with path.open("r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), PAGE_BYTES)).cast("Q")

    def __getitem__(self, place: int) -> int:
        return self.words[place]

    def __setitem__(self, place: int, number: int) -> None:
        self.words[place] = number


def content(version: int) -> bytes:
    return struct.pack("<I", version) * WORDS


class SourceWriter:
    """Changes sources one after the other, and copies."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.page = Page(folder / "page")
        self.sources = [folder / "data" / str(number) for number in range(FILES)]
        (folder / "data").mkdir()
        for source in self.sources:
            source.write_bytes(content(0))
            os.utime(source, ns=(OLD_NS, OLD_NS))
        self.tier = Tier(folder / "tier", self.sources)
        self.changes: list[Callable[[Path, bytes], None]] = [
            self.rewrite, self.rewrite, self.replace, self.replace, self.recreate, self.cut
        ]  # fmt: skip

    def change(self) -> None:
        if self.chance.random() < 0.3:
            self.restage()
            return
        number = self.chance.randrange(FILES)
        if self.chance.random() < 0.15:
            self.spoil(self.sources[number])
            return
        version = self.page[BEGUN + number] + 1
        self.page[BEGUN + number] = version
        self.chance.choice(self.changes)(self.sources[number], content(version))
        self.page[DONE + number] = version

    def rewrite(self, source: Path, data: bytes) -> None:
        """In place, with the old time put back."""
        with source.open("r+b") as file:
            file.write(data)
        os.utime(source, ns=(OLD_NS, OLD_NS))

    def replace(self, source: Path, data: bytes) -> None:
        new = source.with_suffix(".new")
        new.write_bytes(data)
        os.utime(new, ns=(OLD_NS, OLD_NS))
        new.replace(source)

    def recreate(self, source: Path, data: bytes) -> None:
        """The file system gives the new file the old one's number, as like as not."""
        source.unlink()
        source.write_bytes(data)
        os.utime(source, ns=(OLD_NS, OLD_NS))

    def cut(self, source: Path, data: bytes) -> None:
        with source.open("wb") as file:
            file.write(data)

    def restage(self) -> None:
        """All copies anew: map and copies change under the readers' eyes."""
        time.sleep(0.02)  # past a tick of the clock of older kernels; `penstock stage` waits 2 s
        self.tier.stage(self.chance.sample(self.sources, self.chance.randint(1, FILES)))

    def spoil(self, source: Path) -> None:
        """Remove a copy, or damage the copy so that its size or time changes."""
        copy = self.tier.copy_of(source)
        kind = self.chance.randrange(4)
        if kind == 0 and os.fsencode(os.path.realpath(source)) in self.tier.slot_at:
            self.tier.byte(source, STAGED_AT, 0)
        elif kind == 1:
            copy.unlink(missing_ok=True)
        elif kind == 2 and copy.exists():
            os.truncate(copy, 100)
        elif copy.exists():
            os.utime(copy)


def read(folder: Path, reader: int) -> dict[str, int]:
    """Run a reader: return counts by kind; anything under `wrong` is stale or torn."""
    page = Page(folder / "page")
    chance = random.Random(reader)
    seen = {"whole": 0, "between": 0, "absent": 0, "wrong": 0}
    while not page[STOP]:
        number = chance.randrange(FILES)
        first = page[DONE + number]
        try:
            with open(folder / "data" / str(number), "rb", buffering=0) as file:
                data = file.read(8 * WORDS)
        except FileNotFoundError:
            seen["absent"] += 1
            continue
        last = page[BEGUN + number]
        versions = set(struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4]))
        if any(not first <= version <= last for version in versions):
            seen["wrong"] += 1
            print(f"file {number}: read {sorted(versions)}, from {first} to {last}", flush=True)
        elif len(versions) == 1 and len(data) == 4 * WORDS:
            seen["whole"] += 1
        else:  # in the midst of a write in place, as without copies
            seen["between"] += 1
        page[READS + reader] += 1
    return seen


def read_all(folder: Path) -> None:
    """The recorded program: forked readers, and their sums."""
    pids, pipes = [], []
    for reader in range(READERS):
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(into, json.dumps(read(folder, reader)).encode())
            os._exit(0)
        os.close(into)
        pids.append(pid)
        pipes.append(out)
    seen = [json.loads(os.read(pipe, 4096)) for pipe in pipes]
    for pid in pids:
        os.waitpid(pid, 0)
    (folder / "seen").write_text(json.dumps({key: sum(s[key] for s in seen) for key in seen[0]}))


def race(folder: Path, rounds: int, seed: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the readers' counts, and the outcomes of opens.  Raises RuntimeError if the readers
    end."""
    from penstock.runs.run import open_run

    writer = SourceWriter(folder, seed)
    page = writer.page
    command = [sys.executable, str(Path(__file__)), "--read", str(folder)]
    launched = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "-q", "--budget", "1MB", "-o",
         str(folder / "run"), "--", *command],
        env=os.environ | {"PENSTOCK_STAGED": str(writer.tier.map)},
    )  # fmt: skip
    try:
        for _ in range(rounds):
            writer.change()
            before = [page[READS + reader] for reader in range(READERS)]
            while any(page[READS + r] < before[r] + READS_A_ROUND for r in range(READERS)):
                if launched.poll() is not None:
                    raise RuntimeError(f"the readers ended with status {launched.returncode}")
                time.sleep(0.0005)
    finally:
        page[STOP] = 1
        launched.wait(240)
    seen = json.loads((folder / "seen").read_text())
    with open_run(folder / "run") as run:
        opens = dict(
            run.sql("select outcome, sum(opens)::bigint from staged group by 1").fetchall()
        )
    return seen, opens


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-race-") as folder:
        seen, opens = race(Path(folder), rounds, seed)
    print(f"{rounds} rounds; readers saw {seen}; opens {opens}")
    if seen["wrong"] or not opens.get("served"):
        raise SystemExit("stale or torn bytes" if seen["wrong"] else "no copy was ever served")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read_all(Path(sys.argv[2]))
    else:
        main()
