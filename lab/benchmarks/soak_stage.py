"""Stagings killed anywhere, several at once, while sources change: nothing torn is staged.

    python lab/benchmarks/soak_stage.py [ROUNDS]  default: 500; SEED=N repeats the choices
    python lab/benchmarks/soak_stage.py fill [ROUNDS]     200: two `penstock run --fill` of one tier

Each round starts one to three copyings or evictions, kills the processes at random moments,
changes, removes or adds sources meanwhile, and then checks every copy: whole and as in the
manifest, or gone.  Then a copying runs to its end; afterwards every source has a copy.  The first
difference ends the soak with the folder of the difference.

With `fill` a round is two runs that read and fill a tier with a part of the files wanted by both;
launchers, fillings and programs are killed, and the programs compare every word read with the
source at the time.
"""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from bars import scratch
from soak_redirect import Page

from penstock.errors import TierError
from penstock.places import registry
from penstock.stage import manifest
from penstock.stage.copy import copy
from penstock.stage.fill import fill
from penstock.stage.held import verify
from penstock.stage.manifest import Map, TierPlace, stored_bytes
from penstock.stage.source import WantedFile, below

CHUNK = 1 << 16  # of large files, to make small files large here
PROGRAM = f"""
import sys
from penstock.places import registry
from penstock.stage import copy as copying, held, manifest, source
manifest.CHUNK_BYTES = {CHUNK}
tier = registry.tier_of("soak")
print("go", flush=True)
if sys.argv[1] == "evict":
    held.evict(tier, free_bytes=300_000)
else:
    copying.copy(tier, source.below(sys.argv[2]), limit_bps=float(sys.argv[3]), threads=3)
"""


FILES = 24  # of a filling; a run wants 16 files, and the other run wants half of the 16 too
DONE, BEGUN = 0, FILES  # words of the page: a completed version, a begun version
KILLED = 0.05  # of a process at each turn of some 70 ms
READING_S = 1.2
KNOWN = ("lock", "manifest.jsonl", "staged.map", "tier", "parts", "filling")


def main(words: list[str]) -> None:
    is_filling = words[:1] == ["fill"]
    words = words[is_filling:]
    rounds = int(words[0]) if words else 200 if is_filling else 500
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    folder = scratch("soak_stage_fill" if is_filling else "soak_stage")
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    if not is_filling:
        manifest.CHUNK_BYTES = CHUNK
    counts: Counter[str] = Counter()
    for number in range(rounds):
        if number % 10 == 0:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "data").mkdir(parents=True)
            (folder / "tier").mkdir()
            os.environ[registry.ENVIRONMENT] = str(folder / "tiers.json")
            capacity = None
            if is_filling:
                made(folder, chance)
                sizes = [stored_bytes(size_of(file_number)) for file_number in range(FILES)]
                capacity = int(sum(sizes) * chance.uniform(0.2, 0.7))
            registry.add("soak", folder / "tier", capacity)
        if is_filling:
            counts += filled_round(folder, chance)
        else:
            counts["kills"] += one_round(folder, chance)
        if number % 20 == 19:
            print(f"{number + 1} rounds, {words_of(counts)}", flush=True)
    shutil.rmtree(folder)
    print(f"{rounds} rounds, {words_of(counts)}, no difference")


def words_of(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counts.items())


def one_round(folder: Path, chance: random.Random) -> int:
    data = folder / "data"
    for _ in range(chance.randrange(8)):
        changed(data, chance)
    running = []
    for _ in range(chance.randrange(1, 4)):
        what = "evict" if chance.random() < 0.15 else "copy"
        words = [sys.executable, "-c", PROGRAM, what, data, str(10 ** chance.uniform(5.5, 8))]
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for process in running:
        assert process.stdout
        process.stdout.readline()
    kills = 0
    for process in running:
        time.sleep(chance.random() ** 3 * 0.4)
        if chance.random() < 0.5:
            changed(data, chance)
        if chance.random() < 0.85:
            kills += process.poll() is None
            process.kill()
    for process in running:
        _, said = process.communicate()
        expect(folder, process.returncode in (0, -9), said.decode()[-500:])
    looked_at(folder)
    copy(registry.tier_of("soak"), below(data))
    looked_at(folder, is_whole=True)
    return kills


def changed(data: Path, chance: random.Random) -> None:
    """Add, remove or change a source, in place or in a single move."""
    path = data / f"{chance.randrange(3)}" / f"{chance.randrange(30)}"
    path.parent.mkdir(exist_ok=True)
    n_bytes = int(10 ** chance.uniform(1, 5.7))
    kind = chance.random()
    if kind < 0.2:
        path.unlink(missing_ok=True)
    elif kind < 0.6:
        path.write_bytes(chance.randbytes(n_bytes))
    else:
        draft = path.with_name(".draft")
        draft.write_bytes(chance.randbytes(n_bytes))
        draft.replace(path)


def looked_at(folder: Path, is_whole: bool = False, is_part: bool = False) -> None:
    """Check all copies.  is_whole: after a complete staging; is_part: a staging without room for
    all."""
    tier = registry.tier_of("soak")
    place = TierPlace(tier)
    report = verify(tier)
    # A kill between the line and the rename leaves a line without a copy.
    torn = [damage for damage in report.corrupted if damage.why != "gone"]
    expect(folder, not torn, f"damaged: {torn[:3]}")
    if not is_whole:
        return
    # The line of a source removed after the kill stays until the eviction: nobody copies such a
    # source.
    lost = [damage for damage in report.corrupted if Path(damage.entry.source).exists()]
    expect(folder, not lost, f"gone: {lost[:3]}")
    sources = {file.path: Path(file.path).read_bytes() for file in below(folder / "data")}
    with Map(place.map) as served:
        for path, data in sources.items():
            at = served.copy_of(os.fsencode(path))
            if at is None and is_part:
                continue
            expect(folder, at is not None, f"{path}: not staged")
            expect(
                folder, Path(os.fsdecode(at or b"")).read_bytes() == data, f"{path}: other bytes"
            )


# --- two fillings of one tier ---------------------------------------------------------------------


def size_of(number: int) -> int:
    """In whole words, not in whole pages; the largest of 240 kB."""
    return 1000 + 4 * (number * 2503 % 59_999)


def content(number: int, version: int) -> bytes:
    return struct.pack("<I", version) * (size_of(number) // 4)


def made(folder: Path, chance: random.Random) -> None:
    Page(folder / "page")
    for number in range(FILES):
        (folder / "data" / f"{number}").write_bytes(content(number, 0))


def filled_round(folder: Path, chance: random.Random) -> Counter[str]:
    page, counts = Page(folder / "page"), Counter[str]()
    running = [begun(folder, chance, filling) for filling in range(2)]
    everyone: set[int] = set()
    while any(process.poll() is None for process in running):
        time.sleep(chance.random() ** 2 * 0.2)
        if chance.random() < 0.7:
            written_over(folder, page, chance)
        for process in running:
            everyone |= {process.pid, *descendants(process.pid)}
        if chance.random() < KILLED:
            counts["kills"] += killed(chance.choice(sorted(everyone)))
    for pid in everyone - {
        process.pid for process in running
    }:  # fillings after a kill of the launcher
        killed(pid)
    for number, process in enumerate(running):
        _, said = process.communicate()
        seen = folder / f"seen-{number}"
        if seen.exists():
            counts += Counter(json.loads(seen.read_text()))
            expect(folder, not counts["wrong"], f"stale or torn: {seen}")
        is_known = process.returncode in (0, -9, 137) or b"was killed" in said
        expect(folder, is_known, f"{process.returncode}: {said.decode()[-500:]}")
        shutil.rmtree(folder / f"run-{number}", ignore_errors=True)
        seen.unlink(missing_ok=True)
    looked_at(folder)
    within_capacity(folder)
    wanted = [
        WantedFile(f"{folder}/data/{file_number}", chance.random()) for file_number in range(FILES)
    ]
    fill(registry.tier_of("soak"), wanted, limit_bps=1e9)
    looked_at(folder, is_whole=True, is_part=True)
    within_capacity(folder)
    nothing_twice(folder)
    return counts


def begun(folder: Path, chance: random.Random, number: int) -> "subprocess.Popen[bytes]":
    """Start a run that reads 16 files and fills the tier with the files, during reading or from a
    plan."""
    mine = [file_number + 8 * number for file_number in range(16)]
    words: list[str | Path] = [sys.executable, "-m", "penstock", "run", "-q", "--fill", "soak"]
    if chance.random() < 0.6:
        plan = folder / f"plan-{number}.jsonl"
        lines = [
            {"path": f"{folder}/data/{file_number}", "gain_s": chance.random()}
            for file_number in mine
        ]
        plan.write_text("\n".join(map(json.dumps, [{"penstock_plan": 1}, *lines])) + "\n")
        limit = int(10 ** chance.uniform(6, 7))
        words += ["--fill-from", plan, "--fill-limit", f"{limit}"]
    program = [sys.executable, __file__, "--read", folder, f"{number}", *map(str, mine)]
    return subprocess.Popen(
        [*words, "-o", folder / f"run-{number}", "--", *program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def written_over(folder: Path, page: Page, chance: random.Random) -> None:
    """Write the next version of a file, in place or in a single move."""
    number = chance.randrange(FILES)
    path, version = folder / "data" / f"{number}", page[BEGUN + number] + 1
    page[BEGUN + number] = version
    if chance.random() < 0.5:
        with path.open("r+b") as file:
            file.write(content(number, version))
    else:
        draft = folder / ".draft"
        draft.write_bytes(content(number, version))
        draft.replace(path)
    page[DONE + number] = version


def read(folder: Path, name: str, mine: list[int]) -> None:
    """The recorded program: reads for a while, and prints its counts."""
    page, chance = Page(folder / "page"), random.Random(name)
    seen = {"reads": 0, "wrong": 0}
    end_s = time.monotonic() + READING_S
    while time.monotonic() < end_s:
        number = chance.choice(mine)
        first = page[DONE + number]
        with open(folder / "data" / f"{number}", "rb", buffering=0) as file:
            data = file.read(1 << 20)
        last = page[BEGUN + number]
        versions = set(memoryview(data[: len(data) // 4 * 4]).cast("I"))
        is_right = len(data) == size_of(number) and all(
            first <= version <= last for version in versions
        )
        seen["reads"] += 1
        seen["wrong"] += not is_right
        if not is_right:
            print(f"{number}: {len(data)} bytes, {sorted(versions)} not in {first} to {last}")
    (folder / f"seen-{name}").write_text(json.dumps(seen))


def descendants(pid: int) -> list[int]:
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [descendant for child in map(int, below) for descendant in (child, *descendants(child))]


def killed(pid: int) -> bool:
    """Kill a process; return whether there was a process.  Waits until its locks are gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    with suppress(OSError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            time.sleep(0.001)
    return True


def within_capacity(folder: Path) -> None:
    tier = registry.tier_of("soak")
    copies = [path for path in (tier.path / "staged").rglob("*") if path.is_file()]
    taken = sum(int(stored_bytes(path.stat().st_size)) for path in copies)
    expect(folder, taken <= (tier.capacity_bytes or 0), f"{taken} of {tier.capacity_bytes}")


def nothing_twice(folder: Path) -> None:
    """Check that each file has a single line and a single copy, and nothing else lies there."""
    place = TierPlace(registry.tier_of("soak"))
    entries = place.entries()
    sources = Counter(entry.source for entry in entries.values())
    expect(folder, max(sources.values(), default=1) == 1, f"held twice: {sources.most_common(3)}")
    there = {
        str(path.relative_to(place.copies)) for path in place.copies.rglob("*") if path.is_file()
    }
    expect(folder, there == set(entries), f"of one only: {sorted(there ^ set(entries))[:3]}")
    left = [
        *place.parts.iterdir(),
        *(path for path in place.own.iterdir() if path.name not in KNOWN),
    ]
    expect(folder, not left, f"left over: {left[:3]}")


def expect(folder: Path, is_so: bool, why: str) -> None:
    if not is_so:
        raise SystemExit(f"{folder}: {why}")


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["--read"]:
            read(Path(sys.argv[2]), sys.argv[3], list(map(int, sys.argv[4:])))
        else:
            main(sys.argv[1:])
    except TierError as error:
        raise SystemExit(str(error)) from error
