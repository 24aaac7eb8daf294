"""Stagings that are killed anywhere, several at once, while sources change: nothing torn is staged.

    python benchmarks/soak_stage.py [ROUNDS]      500 unless told; SEED=N repeats the choices

Each round starts one to three copyings or evictions, kills them at random moments, changes, removes
or adds sources meanwhile, and then looks at every copy: whole and as the manifest says, or gone.
Then one copying to its end, after which every source has its copy.  The first difference ends the
soak with the folder that shows it.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bars import scratch

from penstock import registry
from penstock.errors import TierError
from penstock.stage import manifest
from penstock.stage.copy import copy
from penstock.stage.held import verify
from penstock.stage.manifest import Map, Place
from penstock.stage.source import below

CHUNK = 1 << 16  # of large files, so that small ones are large here
PROGRAM = f"""
import sys
from penstock import registry
from penstock.stage import copy as copying, held, manifest, source
manifest.CHUNK_BYTES = {CHUNK}
tier = registry.tier_of("soak")
print("go", flush=True)
if sys.argv[1] == "evict":
    held.evict(tier, free_bytes=300_000)
else:
    copying.copy(tier, source.below(sys.argv[2]), limit_bps=float(sys.argv[3]), threads=3)
"""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    manifest.CHUNK_BYTES = CHUNK
    folder = scratch("soak_stage")
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    kills = 0
    for number in range(rounds):
        if number % 10 == 0:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "data").mkdir(parents=True)
            (folder / "tier").mkdir()
            os.environ[registry.ENVIRONMENT] = str(folder / "tiers.json")
            registry.add("soak", folder / "tier")
        kills += one_round(folder, chance)
        if number % 20 == 19:
            print(f"{number + 1} rounds, {kills} kills", flush=True)
    shutil.rmtree(folder)
    print(f"{rounds} rounds, {kills} kills, no difference")


def one_round(folder: Path, chance: random.Random) -> int:
    data = folder / "data"
    for _ in range(chance.randrange(8)):
        changed(data, chance)
    running = []
    for _ in range(chance.randrange(1, 4)):
        what = "evict" if chance.random() < 0.15 else "copy"
        words = [sys.executable, "-c", PROGRAM, what, data, str(10 ** chance.uniform(5.5, 8))]
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for one in running:
        assert one.stdout
        one.stdout.readline()
    kills = 0
    for one in running:
        time.sleep(chance.random() ** 3 * 0.4)
        if chance.random() < 0.5:
            changed(data, chance)
        if chance.random() < 0.85:
            kills += one.poll() is None
            one.kill()
    for one in running:
        _, said = one.communicate()
        expect(folder, one.returncode in (0, -9), said.decode()[-500:])
    looked_at(folder)
    copy(registry.tier_of("soak"), below(data))
    looked_at(folder, is_whole=True)
    return kills


def changed(data: Path, chance: random.Random) -> None:
    """A source more, less or another, in place or in one move."""
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


def looked_at(folder: Path, is_whole: bool = False) -> None:
    tier = registry.tier_of("soak")
    place = Place(tier)
    found = verify(tier)
    # A kill between the line and the rename leaves a line without a copy.
    torn = [one for one in found.corrupted if one.why != "gone"]
    expect(folder, not torn, f"damaged: {torn[:3]}")
    if not is_whole:
        return
    expect(folder, not found.corrupted, f"gone: {found.corrupted[:3]}")
    sources = {one.path: Path(one.path).read_bytes() for one in below(folder / "data")}
    with Map(place.map) as served:
        for path, data in sources.items():
            at = served.copy_of(os.fsencode(path))
            expect(folder, at is not None, f"{path}: not staged")
            expect(
                folder, Path(os.fsdecode(at or b"")).read_bytes() == data, f"{path}: other bytes"
            )


def expect(folder: Path, is_so: bool, why: str) -> None:
    if not is_so:
        raise SystemExit(f"{folder}: {why}")


if __name__ == "__main__":
    try:
        main()
    except TierError as error:
        raise SystemExit(str(error)) from error
