"""python -m fuzz [--minutes M] [--into FOLDER] [TARGET ...]: fuzz readers in turns, each in a
process of its own; findings are kept as files and said.  Ends with status 1 if there are any."""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.targets import TARGETS, Target
from fuzz.watching import tried

CORPUS = Path(__file__).parent / "corpus"
TURN_S = 60.0


@dataclass
class Round:
    """What one process did: how many inputs, and what was found, by its words."""

    inputs: int = 0
    findings: dict[str, bytes] = field(default_factory=dict)


def seeds_of(target: Target) -> list[bytes]:
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder:
        made = target.seeds(Path(folder))
    kept = sorted((CORPUS / target.name).glob("*")) if (CORPUS / target.name).is_dir() else []
    return [*made, *(path.read_bytes() for path in kept)]


def kept_inputs(target: Target) -> list[Path]:
    """Inputs that once were findings."""
    folder = CORPUS / target.name
    return sorted(folder.glob("*")) if folder.is_dir() else []


def tried_once(target: Target, data: bytes) -> str:
    """Why an input is a finding; ""."""
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder:
        path = Path(folder) / target.file
        path.write_bytes(data)
        with contextlib.chdir(folder):
            return tried(target.read, target.errors, path, Path(folder))


def fuzz(target: Target, seconds: float, seed: int, most: int = 1 << 60) -> Round:
    """Tries sound files and earlier findings, then changes of them until the time is over or enough
    were tried.  A sound file that is refused is a finding: a target whose own files are refused
    would test nothing behind the first check."""
    draws, done = random.Random(seed), Round()
    pool = seeds_of(target)
    kept = {path.read_bytes() for path in kept_inputs(target)}
    for data in pool:
        if why := tried_once(target if data in kept else replace(target, errors=()), data):
            done.findings.setdefault(_kind(why), data)
    until = time.monotonic() + seconds
    while time.monotonic() < until and done.inputs < most:
        data = draws.choice(pool) if pool else b""
        for _ in range(1 + (draws.random() < 0.2)):
            data = target.mutate(draws, data)
        if len(data) >= 1 << 20:
            continue
        _last(target, data)
        why = tried_once(target, data)
        done.inputs += 1
        if why:
            done.findings.setdefault(_kind(why), data)
        elif draws.random() < 0.02 and len(pool) < 200:
            pool.append(data)
    return done


def _kind(why: str) -> str:
    """Return the place in the code, which identifies a finding."""
    return why.rpartition("(")[2] or why


def _last(target: Target, data: bytes) -> None:
    """Save an input that may end this process, for the parent process."""
    if place := os.environ.get("PENSTOCK_FUZZ_LAST"):
        Path(place).write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--into", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--turn", type=float, default=TURN_S, help="seconds of a target at a time")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS])
    asked = parser.parse_args()
    names = asked.targets or sorted(TARGETS)
    asked.into.mkdir(parents=True, exist_ok=True)
    if asked.alone is not None:
        return _alone(TARGETS[names[0]], asked.turn, asked.alone, asked.into)
    until, number, bad = time.monotonic() + 60 * asked.minutes, random.randrange(1 << 40), 0
    while time.monotonic() < until:
        random.shuffle(names)
        for name in names:
            left = until - time.monotonic()
            if left <= 0:
                break
            number += 1
            bad += _apart(name, min(left, asked.turn), number, asked.into)
    return 1 if bad else 0


def _apart(name: str, seconds: float, seed: int, into: Path) -> int:
    last = into / f"last-{name}"
    command = [sys.executable, "-m", "fuzz", "--turn", f"{seconds}", "--into", str(into)]
    done = subprocess.run(
        [*command, "--alone", str(seed), name],
        env=os.environ | {"PENSTOCK_FUZZ_LAST": str(last)},
    )
    if done.returncode < 0:
        kept = into / f"{name}-signal-{-done.returncode}-{seed}"
        shutil.copy(last, kept)
        print(f"FOUND {name}: died of {signal.Signals(-done.returncode).name}: {kept}", flush=True)
    last.unlink(missing_ok=True)
    return int(done.returncode != 0)


def _alone(target: Target, seconds: float, seed: int, into: Path) -> int:
    begun = time.process_time()
    done = fuzz(target, seconds, seed)
    for number, (why, data) in enumerate(done.findings.items()):
        kept = into / f"{target.name}-{seed}-{number}"
        kept.write_bytes(data)
        print(f"FOUND {target.name}: {tried_once(target, data) or why}: {kept}", flush=True)
    cpu_s = time.process_time() - begun
    print(f"{target.name}: {done.inputs:,} inputs, {cpu_s:.0f} s of a CPU", flush=True)
    return 1 if done.findings else 0


if __name__ == "__main__":
    sys.exit(main())
