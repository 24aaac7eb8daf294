"""Kills at random of a node's readers, ranks and owner: nobody hangs, nothing stays.

    python lab/benchmarks/soak_feed.py --rounds 1000

Each round: an owner with readers, ranks in separate processes, and a kill of a random process after
a random time.  The others must end by themselves within TOLD_S, after reading right bytes or with a
stated reason; afterwards no reader runs and /dev/shm is unchanged.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOLD_S = 20.0
N, RANKS = 400, 2

OWNER = """
import sys, time
from penstock.feed import NodeFeed
with NodeFeed(sys.argv[1], 4, ranks=range(2), world_size=2, shuffle="global", readers=2,
              buffer_bytes=2 << 20) as node:
    print(node.token, *node.processes, flush=True)
    sys.stdin.read()
"""

RANK = """
import sys, zlib
from penstock.errors import FeedError
from penstock.feed import attach
try:
    feed = attach(sys.argv[1], int(sys.argv[2]))
    print("attached", flush=True)
    for epoch in range(3):
        for batch in feed:
            for record in batch:
                key, crc = record.key.split(b"-")
                assert zlib.crc32(record) == int(crc), key
except FeedError as error:
    print(error)
"""


def made(folder: Path) -> Path:
    import zlib

    import lmdb

    sizes = random.Random(1)
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(N):
            value = sizes.randbytes(sizes.choice([10, 3000, 30_000]))
            txn.put(b"%06d-%d" % (i, zlib.crc32(value)), value)
    return folder


def one_round(path: Path, seed: int) -> str:
    """Run a round; return the killed process, or the failure."""
    choice = random.Random(seed)
    before = shared()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    owner = subprocess.Popen([sys.executable, "-c", OWNER, path], text=True, **pipes)
    assert owner.stdout is not None
    token, *readers = owner.stdout.readline().split()
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, token, str(rank)], stdout=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    what, victim = choice.choice(
        [("owner", owner.pid), ("rank", ranks[0].pid), *(("reader", int(each)) for each in readers)]
    )
    # before the first line nobody knows the rank: the others would wait for a minute
    if what == "rank":
        assert ranks[0].stdout is not None
        ranks[0].stdout.readline()
    # sometimes before the ranks have begun, sometimes after their end
    time.sleep(choice.uniform(0, 0.8))
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        what = f"{what}, which had ended"
    deadline = time.monotonic() + TOLD_S
    for number, rank in enumerate(ranks):
        try:
            status = rank.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            return f"seed {seed}: rank {number} hangs after the {what} was killed"
        if status not in (0, -signal.SIGKILL):
            return f"seed {seed}: rank {number} ended with {status} after the {what} was killed"
    try:
        owner.communicate(timeout=TOLD_S)
    except subprocess.TimeoutExpired:
        owner.kill()
        return f"seed {seed}: the owner hangs after the {what} was killed"
    while any(runs(int(reader)) for reader in readers):
        if time.monotonic() > deadline + TOLD_S:
            return f"seed {seed}: a reader outlives its owner after the {what} was killed"
        time.sleep(0.05)
    left = shared() - before
    return f"seed {seed}: {left} is left in /dev/shm" if left else what


def shared() -> set[str]:
    """Return our files and Python's in /dev/shm; other programs use the folder meanwhile."""
    names = {path.name for path in Path("/dev/shm").iterdir()}
    return {name for name in names if name.startswith(("penstock-feed", "psm_"))}


def runs(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    seen: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = made(Path(folder))
        for round_ in range(asked.rounds):
            what = one_round(path, asked.seed + round_)
            if what.startswith("seed"):
                raise SystemExit(what)
            seen[what] = seen.get(what, 0) + 1
            if sys.stderr.isatty():
                print(f"\r{round_ + 1} of {asked.rounds}", end="", file=sys.stderr)
    print(", ".join(f"{what} killed: {n}" for what, n in sorted(seen.items())))


if __name__ == "__main__":
    main()
