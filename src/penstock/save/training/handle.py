"""Describe a save of a training: known facts, stages, and the work that would be lost now."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.save.training.snapshot import TakenSnapshot

__all__ = ["AtRisk", "Handle", "Save", "SaveUnderWay"]


@dataclass(frozen=True, slots=True)
class Save:
    """The known facts about a save.  None: not known yet, or not measured.

    block_s: time for which the caller was blocked, of which waited_s for the previous save.
    is_first: the arena was made during the save.  local_s, durable_s: time from the start of the
    save to `local` and to `durable`.  lost_s: lost time of the training, block included, up to
    `local`; lost_to_durable_s: up to `durable`; see lost.py.  path: on the tier of the write.
    is_blocking: the caller waited for `local`.
    """

    step: int
    begin_unix_s: float
    block_s: float | None = None
    waited_s: float = 0.0
    is_first: bool = False
    size_bytes: int | None = None
    local_s: float | None = None
    durable_s: float | None = None
    lost_s: float | None = None
    lost_to_durable_s: float | None = None
    path: str = ""
    error: str = ""
    is_skipped: bool = False
    is_blocking: bool = False


@dataclass(frozen=True, slots=True)
class AtRisk:
    """The work that would be lost if the node died now: everything since the newest durable
    checkpoint.

    step: the step of the newest durable checkpoint; None: no durable checkpoint.  since_s: time
    since the start of the save of the newest durable checkpoint; without a durable checkpoint, the
    age of the Checkpointer.  backlog: number of checkpoints that are only on this node."""

    step: int | None
    since_s: float
    backlog: int


class Handle:
    """The progress of a save, as three futures.

    staged: the state may change again.  local: the checkpoint counts and survives the process; the
    result is the path.  durable: the checkpoint is verified on the slow tier and survives the node;
    the result is the path on the slow tier.  With a single tier, local and durable are equal.  A
    skipped save has None in all three.  durable is also None if `keep` lets a newer checkpoint
    replace the checkpoint on the slow tier.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.staged: Future[None] = Future()
        self.local: Future[str | None] = Future()
        self.durable: Future[str | None] = Future()
        for future in (self.staged, self.local, self.durable):
            # Marked as running, because asyncio.wait_for cannot cancel a running future.
            future.set_running_or_notify_cancel()

    def _fail(self, error: PenstockError) -> None:
        for future in (self.staged, self.local, self.durable):
            if not future.done():
                future.set_exception(error)

    def _skip(self) -> None:
        for future in (self.staged, self.local, self.durable):
            if not future.done():
                future.set_result(None)

    def __repr__(self) -> str:
        def word(future: Future[Any]) -> str:
            if not future.done():
                return "going"
            return "failed" if future.exception() else "done"

        stages = ", ".join(f"{name} {word(getattr(self, name))}" for name in _STAGES)
        return f"<save of step {self.step}: {stages}>"


_STAGES = ("staged", "local", "durable")


@dataclass(slots=True)
class SaveUnderWay:
    """A save under way, with the facts needed until the end."""

    handle: Handle
    save: Save
    begin_s: float
    taken: TakenSnapshot | None = None
    content: bytes | None = None
    root: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    refused: str = ""  # why the rank has nothing to write; sent to the other ranks
    end_s: float = 0.0  # end of the write
    local_unix_s: float = 0.0  # an earlier look of the drain says nothing about the save
    # From the manifest, kept because the fast tier may give up the save early.  None: not known
    # yet.
    content_id: str | None = None
    unread_s: float = math.inf  # start of the read errors
