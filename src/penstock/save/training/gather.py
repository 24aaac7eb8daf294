"""Combine the parts of many ranks into one checkpoint, by files in a folder, without collectives.

The writers of all ranks share a session, the folder `STATE/ranks-TOKEN` on the tier.  A session
lasts as long as the Checkpointers of one start of the job.  Each save has these files there:

    begun-KEY            by rank 0: the name of the part; the other ranks may write into the part
    part-KEY-RANK        by a rank: the rank's files are written and synced; the checksums
    failed-KEY-RANK      by a rank: the rank's files will never be there; the reason
    done-KEY             by rank 0: the checkpoint is committed; whether the next save blocks
    failed-KEY           by rank 0: the save was given up; the reason

The protocol has two phases: no part counts before rank 0 has seen all parts.  TOKEN is new at each
start, so the files of a killed job are never taken for files of the next job.  A rank holds a lock
while the rank's writer lives: a free lock shows at once that the writer has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, SaveError, TierError
from penstock.places.stores import fsync_folder
from penstock.save.commit import (
    STATE,
    Claim,
    DraftCheckpoint,
    abort,
    begin,
    claim,
    commit,
    join,
    sweep,
)
from penstock.save.manifest import Manifest, parse, to_json
from penstock.save.training.arena import Arena
from penstock.save.training.imagefile import Image, write_image, write_text

if TYPE_CHECKING:
    from penstock.save.training.writer import WriterJob

__all__ = ["WriterSession"]

FIRST_LOOK_S, LAST_LOOK_S = 0.002, 0.25  # between two looks into the folder, doubled each time
CLAIM_S = 120.0  # the writer of a killed job may still be writing the last save
NO_ROOT = ""


class WriterSession:
    """The session of one writer with the tier and the other ranks.

    Rank 0 claims the tier and removes the remains of crashes.  Raises SaveError: another job has
    the tier.
    """

    def __init__(
        self, root: str = NO_ROOT, rank: int = 0, world_size: int = 1, token: str = ""
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._claim: Claim | None = None
        self._lock: int | None = None
        self._folder = Path(root) / STATE / f"ranks-{token}"
        self._turns: dict[int, int] = {}
        self._turned: list[str] = []  # keys of saves with notes that may still exist
        if root == NO_ROOT:
            return
        if rank == 0:
            self._claim = claim(root, "job", CLAIM_S)
            sweep(root)
            _forget_sessions(self._folder)
        if world_size > 1:
            self._folder.mkdir(parents=True, exist_ok=True)
            unseen = self._folder / f".lock-{rank}"  # renamed when the lock is held
            self._lock = os.open(
                unseen, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
            )
            with suppress(OSError):  # a file system without locks: the timeout decides
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            unseen.rename(self._lock_of(rank))

    @classmethod
    def of(cls, fields: dict[str, Any]) -> WriterSession:
        return cls(**fields)

    def __enter__(self) -> WriterSession:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
        if self._claim is not None:
            self._claim.close()

    def save(self, job: WriterJob, content: bytes, arena: Arena | None) -> tuple[str, int, bool]:
        """Write the rank's part, and return when the checkpoint is committed.

        Returns the path of the checkpoint, the bytes of the rank's files, and rank 0's
        job.will_block.  Raises SaveError, TierError: the checkpoint does not count."""
        if self.world_size == 1:
            part = begin(job.root, job.step)
            try:
                size = _written(part, job, content, arena)
                path = commit(part, metrics=job.metrics, kind=job.kind)
            except BaseException:
                _abort_quietly(part)
                raise
            return str(path), size, job.will_block
        turn = self._turns[job.step] = self._turns.get(job.step, 0) + 1
        key = f"{job.step}.{turn}"
        if self.rank == 0:
            self._turned.append(key)
        if job.refused:
            self._tell(f"failed-{key}" + (f"-{self.rank}" if self.rank else ""), job.refused)
            raise SaveError(job.refused)
        act = self._lead if self.rank == 0 else self._follow
        return act(key, job, content, arena)

    def _forget_older(self) -> None:
        """Remove the files of earlier saves.  Called when all ranks have handed in the part of a
        later save: no rank reads the files of an earlier save any more."""
        older, self._turned = self._turned[:-1], self._turned[-1:]
        for key in older:
            for path in self._folder.glob(f"*-{key}*"):
                path.unlink(missing_ok=True)

    def _lead(
        self, key: str, job: WriterJob, content: bytes, arena: Arena | None
    ) -> tuple[str, int, bool]:
        part = None
        try:
            part = begin(job.root, job.step)
            self._tell(f"begun-{key}", part.name)
            size = _written(part, job, content, arena)
            ranks = range(1, self.world_size)
            self._wait(job.timeout_s, lambda: self._missing(key, ranks), key)
            self._forget_older()
            for rank in ranks:
                handed = self._folder / f"part-{key}-{rank}"
                part.sums |= {
                    file.name: file for file in parse(handed.read_bytes(), str(handed)).files
                }
            path = commit(part, world_size=self.world_size, metrics=job.metrics, kind=job.kind)
        except BaseException as error:
            self._tell(f"failed-{key}", str(error))
            if part is not None:
                _abort_quietly(part)
            raise
        self._tell(f"done-{key}", json.dumps([str(path), job.will_block]))
        return str(path), size, job.will_block

    def _follow(
        self, key: str, job: WriterJob, content: bytes, arena: Arena | None
    ) -> tuple[str, int, bool]:
        name = self._heard(f"begun-{key}", key, job.timeout_s)
        try:
            part = join(job.root, name, job.step)
            size = _written(part, job, content, arena)
            fsync_folder(part.path)
        except (PenstockError, OSError) as error:
            given_up = self._folder / f"failed-{key}"  # rank 0 has removed the part: the cause
            if given_up.exists():
                raise SaveError(given_up.read_text()) from error
            self._tell(f"failed-{key}-{self.rank}", str(error))
            raise
        # Not inside the part: a note would revive a part that rank 0 has given up.
        sums = Manifest(tuple(part.sums.values()), job.step)
        self._tell(f"part-{key}-{self.rank}", to_json(sums).decode())
        path, will_block = json.loads(self._heard(f"done-{key}", key, job.timeout_s))
        return path, size, will_block

    def _heard(self, name: str, key: str, timeout_s: float) -> str:
        """Wait for a file of rank 0, and return the text.  Raises SaveError."""

        def missing() -> list[int]:
            return [] if (self._folder / name).exists() else [0]

        self._wait(timeout_s, missing, key)
        return (self._folder / name).read_text()

    def _missing(self, key: str, ranks: range) -> list[int]:
        return [rank for rank in ranks if not (self._folder / f"part-{key}-{rank}").exists()]

    def _wait(self, timeout_s: float, missing: Callable[[], list[int]], key: str) -> None:
        """Wait until nothing is missing.  Raises SaveError: a rank has failed, has ended, or is
        late."""
        step = key.partition(".")[0]
        end_s, look_s = time.monotonic() + timeout_s, FIRST_LOOK_S
        while absent := missing():
            for path in self._folder.glob(f"failed-{key}*"):
                if path.name != f"failed-{key}-{self.rank}":
                    who = path.name.removeprefix(f"failed-{key}").removeprefix("-") or "0"
                    raise SaveError(f"step {step} was given up: rank {who}: {path.read_text()}")
            # Look for the part again after the lock: a rank may hand in a part and end.
            dead = [rank for rank in absent if self._is_dead(rank) and rank in missing()]
            if dead and not any(self._folder.glob(f"failed-{key}*")):
                raise SaveError(
                    f"step {step} was given up: rank {dead[0]} has ended; checkpoints before it "
                    "are as they were"
                )
            if time.monotonic() > end_s:
                raise SaveError(
                    f"step {step} was given up: no word from rank {absent[0]} in {timeout_s:.0f} "
                    "s; every rank calls save() with the same steps"
                )
            time.sleep(look_s)
            look_s = min(look_s * 2, LAST_LOOK_S)

    def _is_dead(self, rank: int) -> bool:
        try:
            descriptor = os.open(self._lock_of(rank), os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the rank's writer has not begun
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # held, or a file system without locks
            return False
        finally:
            os.close(descriptor)
        return True

    def _lock_of(self, rank: int) -> Path:
        return self._folder / f"lock-{rank}"

    def _tell(self, name: str, text: str) -> None:
        with suppress(OSError):  # a full tier: the other ranks reach the timeout
            unseen = self._folder / f".{name}"
            unseen.write_text(text)
            unseen.rename(self._folder / name)


def _forget_sessions(ours: Path) -> None:
    """Remove the sessions of earlier starts.  The claim of the tier shows that the earlier writers
    have ended."""
    for folder in ours.parent.glob("ranks-*"):
        if folder != ours:
            shutil.rmtree(folder, ignore_errors=True)


def _written(part: DraftCheckpoint, job: WriterJob, content: bytes, arena: Arena | None) -> int:
    """Write and sync the rank's files, and add the checksums to part.sums.  Returns the bytes
    written."""
    if job.is_empty or arena is None:
        return 0
    path = str(part.path / job.file)
    if job.kind == "torch":
        image = Image.of_zip(arena.memory, job.sizes, content)
    else:
        image = Image(arena.memory, job.body_bytes)
    part.sums[job.file] = write_image(path, image, job.file)
    if job.beside:
        beside = str(part.path / job.beside)
        part.sums[job.beside] = write_text(beside, content, job.beside)
    return sum(file_sum.size_bytes for file_sum in part.sums.values())


def _abort_quietly(part: DraftCheckpoint) -> None:
    """Remove a part and suppress errors: the reason for the abort is the error to report.  The next
    start removes remaining files."""
    with suppress(TierError, OSError):
        abort(part)
