"""Programs without Penstock, for a soak that kills these programs beside Penstock's own saves.

The module knows the formats of the programs, and uses Penstock as a user does.
"""

import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from soak_own import SIZE_BYTES, leftovers

from penstock.cli.draining import fetch_choice as _fetched
from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep, prune
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.verify import latest_valid

__all__ = ["FOREIGN", "Last", "TrainerFolder"]

# Processes to kill, with weights.  node: the fast tier is lost; recover fetches from the slow tier.
FOREIGN = {"program": 3, "drain": 4, "prune": 3, "recover": 2, "node": 1}
FOREIGN_S = 0.7  # longest time before a kill
SETTLE_S = 0.05


@dataclass
class _Other:
    """A program without Penstock saves while `drain --foreign`, `prune` and `recover --fetch` work
    on the program's folder.  Each process is a fork of this process, and so starts at once.

    ended: number of the last complete save by name, without names being written again; slow: number
    of the save that was whole on the slow tier, by name.
    """

    folder: Path
    keep: Keep = field(init=False)
    last: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    slow: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tier in self.tiers:
            tier.mkdir(parents=True)

    @property
    def tiers(self) -> tuple[Path, Path]:
        return self.folder / "fast", self.folder / "slow"

    def write(self, fast: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
        """Save once; yield ("began", name) before an overwrite, ("ended", name) after the save."""
        raise NotImplementedError

    def number_in(self, tier: Path, name: str) -> int:
        """Return the number of the save under this name; 0: not whole.  Uses the format only, no
        code of Penstock."""
        raise NotImplementedError

    def look(self, what: str, numbers: dict[str, int]) -> None:
        """Check the removals against `keep`.  numbers: whole saves on the fast tier, by name."""
        raise NotImplementedError

    def killed(self, what: str, chance: random.Random) -> None:
        fast, _ = self.tiers
        if what == "node":
            shutil.rmtree(fast)
            fast.mkdir()
            self.ended.clear()
        begun = {}
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as log:
            seed = chance.randrange(1 << 30)
            if what in ("recover", "node"):
                begun[what] = _forked(lambda: self._recover(), log)
            else:
                if what == "program" or chance.random() < 0.8:
                    begun["program"] = _forked(lambda: self._save(said.fileno(), seed), log)
                if what == "drain" or chance.random() < 0.6:
                    limit_bps = chance.choice((None, 1e8))
                    begun["drain"] = _forked(lambda: self._drain(limit_bps), log)
                if what == "prune":
                    begun["prune"] = _forked(self._prune, log)
            time.sleep(chance.random() * FOREIGN_S)
            for doomed in (what, *begun):
                if doomed in begun:
                    os.kill(begun[doomed], signal.SIGKILL)
                    time.sleep(chance.random() / 20)
            for name, pid in begun.items():
                _, status = os.waitpid(pid, 0)
                if status != signal.SIGKILL and (status or name not in ("recover", "node")):
                    log.seek(0)
                    raise SystemExit(f"{self.folder}: {name}: {status}: {log.read()[-3000:]}")
            said.seek(0)
            self._hear(said.read())
        self._look(what)

    def _save(self, said: int, seed: int) -> None:
        chance, number = random.Random(seed), self.last
        while True:
            number += 1
            for word, name in self.write(self.tiers[0], number, chance):
                os.write(said, f"{word} {name} {number}\n".encode())
            time.sleep(0.02 + chance.random() ** 2 * 0.3)

    def _drain(self, limit_bps: float | None) -> None:
        keep = self.keep
        with Drainer(
            *self.tiers, DrainSettings(limit_bps, settle_s=SETTLE_S, tries=1, keep=keep)
        ) as working:
            while True:
                working.once()
                time.sleep(0.01)

    def _prune(self) -> None:
        fast, slow = map(LocalStore, self.tiers)
        while True:
            prune(fast, slow, self.keep)

    def _recover(self) -> None:
        fast, slow = self.tiers
        keep = self.keep
        choice, _ = recover(fast, slow, DrainSettings(settle_s=SETTLE_S, tries=2, keep=keep))
        if choice.checkpoint is not None:
            _fetched(choice, fast, os.fspath(slow))

    def _hear(self, said: str) -> None:
        for line in said.splitlines():
            word, name, number = line.split()
            self.last = max(self.last, int(number))
            if word == "began":
                self.ended.pop(name, None)
            else:
                self.ended[name] = int(number)

    def _look(self, what: str) -> None:
        fast, slow = self.tiers
        on_fast = {
            checkpoint.name: self.number_in(fast, checkpoint.name)
            for checkpoint in find(LocalStore(fast))
        }
        there = find(LocalStore(slow))
        on_slow = {checkpoint.name: self.number_in(slow, checkpoint.name) for checkpoint in there}
        self.look(what, on_fast)
        self.stays(what, on_slow)
        for checkpoint in there:
            if checkpoint.is_ours and not on_slow[checkpoint.name]:
                self.fail(what, f"{checkpoint.where}: drained, and not whole")
        self.slow = {name: number for name, number in on_slow.items() if number}
        choice = latest_valid(fast, slow, "full")
        wanted = self.newest({**{f"fast {name}": n for name, n in on_fast.items()},
                              **{f"slow {name}": n for name, n in on_slow.items()}})  # fmt: skip
        chosen = 0
        if choice.path is not None and choice.checkpoint is not None:
            chosen = self.number_in(Path(choice.checkpoint.store.url), choice.checkpoint.name)
        if chosen != wanted:
            self.fail(what, f"{wanted} is whole, chosen: {chosen}: {choice}")

    def newest(self, numbers: dict[str, int]) -> int:
        return max(numbers.values(), default=0)

    def stays(self, what: str, on_slow: dict[str, int]) -> None:
        """Compare the saves on the slow tier with the earlier saves there."""
        raise NotImplementedError

    def fail(self, what: str, why: str) -> None:
        raise SystemExit(
            f"{self.folder}: killed {what}: {why}; on slow: {self.slow}, ended: {self.ended}"
        )

    def end(self) -> None:
        fast, slow = self.tiers
        recover(fast, slow, DrainSettings(settle_s=SETTLE_S, keep=self.keep))
        left = leftovers(fast) + leftovers(slow)
        left += [path for tier in self.tiers for path in tier.rglob("*.penstock.half")]
        if left:
            raise SystemExit(f"{self.folder}: after recovery: {left}")


class Last(_Other):
    """Write `last.ckpt` in place as torch.save does, and `last.pt` by a rename, again and again.
    The newest whole save on any tier must never be older than an earlier save on the slow tier."""

    keep = Keep(fast=0, last=1, foreign=True)

    def write(self, fast: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
        data = _archive(number, SIZE_BYTES)
        if chance.random() < 0.3:
            (fast / "last.pt.tmp").write_bytes(data)
            yield "began", "last.pt"
            (fast / "last.pt.tmp").replace(fast / "last.pt")
            yield "ended", "last.pt"
            return
        yield "began", "last.ckpt"
        mode = "r+b" if (fast / "last.ckpt").exists() and chance.random() < 0.5 else "wb"
        with (fast / "last.ckpt").open(mode, buffering=0) as file:
            for start in range(0, len(data), 1 << 20):
                file.write(data[start : start + (1 << 20)])
                time.sleep(chance.random() ** 4 * 0.02)
        yield "ended", "last.ckpt"

    def number_in(self, tier: Path, name: str) -> int:
        return _number_in(tier / name)

    def look(self, what: str, numbers: dict[str, int]) -> None:
        fast, slow = self.tiers
        there = [_number_in(path) for path in slow.glob("last*")]
        for name, number in self.ended.items():
            if numbers.get(name) != number and max(there, default=0) < number:
                self.fail(what, f"{fast / name}: {number} is on no tier")

    def stays(self, what: str, on_slow: dict[str, int]) -> None:
        if max(on_slow.values(), default=0) < max(self.slow.values(), default=0):
            self.fail(what, f"the slow tier has {on_slow}")


class TrainerFolder(_Other):
    """Write a Trainer's folder: a model in place, a log, and checkpoints in folders below.

    Allowed removals: a checkpoint from the slow tier if newer checkpoints are there; a checkpoint
    from the fast tier if the slow tier has or had a copy; the model if replaced by a newer model.
    The model's folder and the log stay while the folder contains checkpoints."""

    keep = Keep(fast=1, last=3, foreign=True)

    def write(self, fast: Path, number: int, chance: random.Random) -> Iterator[tuple[str, str]]:
        name = "out" if chance.random() < 0.3 else f"out/checkpoint-{number}"
        path = fast / name
        if name == "out":
            yield "began", name
        path.mkdir(parents=True, exist_ok=True)
        (fast / "out" / "runs").mkdir(exist_ok=True)
        with (fast / "out" / "runs" / "events").open("a") as log:
            log.write(f"{number}\n")
        (path / "config.json").write_text("{}")
        data = _archive(number, 300_000)
        with (path / "pytorch_model.bin").open("wb", buffering=0) as file:
            for start in range(0, len(data), 1 << 16):
                file.write(data[start : start + (1 << 16)])
                time.sleep(chance.random() ** 4 * 0.02)
        (path / "trainer_state.json").write_text(json.dumps({"global_step": number}))
        yield "ended", name

    def number_in(self, tier: Path, name: str) -> int:
        state = tier / name / "trainer_state.json"
        # A model beside checkpoints needs no state; an empty state: the program was killed there.
        is_ended = state.read_text() != "" if state.exists() else "checkpoint-" not in name
        return _number_in(tier / name / "pytorch_model.bin") if is_ended else 0

    def newest(self, numbers: dict[str, int]) -> int:
        """Return the newest save; saves with a step in the name precede all others."""
        steps = {name: number for name, number in numbers.items() if "checkpoint-" in name}
        return super().newest(steps) or super().newest(numbers)

    def look(self, what: str, numbers: dict[str, int]) -> None:
        fast, slow = self.tiers
        arrived = {step for name in ("out", "out.2") if (slow / name).exists()
                   for step in map(self._step, (slow / name).glob("checkpoint-*"))}  # fmt: skip
        saved = sorted(number for name, number in self.ended.items() if name != "out")
        for number in saved:
            name = f"out/checkpoint-{number}"
            if numbers.get(name) == number:
                continue
            newer = [step for step in arrived if step > number]
            assert self.keep.last is not None
            if number in saved[-self.keep.fast :]:
                self.fail(what, f"{fast / name}: is among the newest, and gone")
            if number not in arrived and len(newer) < self.keep.last:
                self.fail(what, f"{fast / name}: is gone, and the slow tier has {arrived}")
        if saved and "out" in self.ended and numbers.get("out") != self.ended["out"]:
            self.fail(what, f"{fast / 'out'}: the model is gone: {numbers}")
        if saved and not (fast / "out" / "runs" / "events").exists():
            self.fail(what, f"{fast / 'out'}: the log is gone")

    @staticmethod
    def _step(path: Path) -> int:
        return int(path.name.removeprefix("checkpoint-").partition(".")[0])

    def stays(self, what: str, on_slow: dict[str, int]) -> None:
        assert self.keep.last is not None
        for name, number in self.slow.items():
            newer = [n for other, n in on_slow.items() if n > number and "checkpoint-" in other]
            is_enough = len(newer) >= self.keep.last
            if "checkpoint-" not in name:  # only a newer model replaces a model
                newer = [n for other, n in on_slow.items() if "checkpoint-" not in other]
                is_enough = max(newer, default=0) >= number
            if on_slow.get(name, 0) < number and not is_enough:
                self.fail(what, f"{self.tiers[1] / name}: {number} is gone: {on_slow}")
        is_holding = any(name.startswith("out/") for name in on_slow)
        if "out" in self.slow and "out" not in on_slow and is_holding:
            self.fail(what, f"{self.tiers[1] / 'out'}: the model is gone: {on_slow}")


def _forked(work: Callable[[], None], log: Any) -> int:
    """Run `work` in a forked child, with the output in the log.  Return the PID."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        work()
        status = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _archive(number: int, size_bytes: int) -> bytes:
    """Return a file as torch.save writes one: a zip archive with a checksum for each record."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", np.full(size_bytes // 8, number, "<f8").tobytes())
    return made.getvalue()


def _number_in(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            data = np.frombuffer(archive.read("archive/data/0"), "<f8")
            return int(data[0]) if archive.testzip() is None and (data == data[0]).all() else 0
    except (OSError, zipfile.BadZipFile, KeyError, EOFError, ValueError):
        return 0
