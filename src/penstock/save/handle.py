"""One save of a training: what is known of it, its stages, and what would be lost now."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.save.snapshot import (
    TakenSnapshot,
)

__all__ = ["AtRisk", "Handle", "Save", "SaveUnderWay"]


@dataclass(frozen=True, slots=True)
class Save:
    """What is known of a save.  None: not yet, or not measured.

    block_s: the caller could not go on, waited_s of it for the save before; is_first: the arena was
    made in it.  local_s, durable_s: from its beginning to there.  lost_s: of the training, block
    included, up to `local`, lost_to_durable_s up to `durable`; see lost.py.
    path: on the tier it was written to.  is_blocking: the caller waited for `local`.
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
    """What would be lost if the node died now: everything since the newest checkpoint that is
    durable.  step: its step, None when there is none.  since_s: since its save began; the whole of
    the Checkpointer's life when there is none.  backlog: checkpoints that are only on this node."""

    step: int | None
    since_s: float
    backlog: int


class Handle:
    """What becomes of a save, as three futures.

    staged: the state may change again.  local: the checkpoint counts, and survives the process;
    its path.  durable: it is verified on the slow tier, and survives the node; its path there.
    Where there is one tier, local and durable are one.  A save that was skipped has None in all,
    and durable is None where `keep` lets a newer one take its place on the slow tier.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.staged: Future[None] = Future()
        self.local: Future[str | None] = Future()
        self.durable: Future[str | None] = Future()
        for future in (self.staged, self.local, self.durable):
            # Under way, so that nobody cancels what is being written, as asyncio.wait_for would.
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

        told = ", ".join(f"{name} {word(getattr(self, name))}" for name in _STAGES)
        return f"<save of step {self.step}: {told}>"


_STAGES = ("staged", "local", "durable")


@dataclass(slots=True)
class SaveUnderWay:
    """A save under way."""

    handle: Handle
    save: Save
    begin_s: float
    taken: TakenSnapshot | None = None
    content: bytes | None = None
    root: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    refused: str = ""  # why this rank has nothing to write; the others are to hear of it
    end_s: float = 0.0  # of writing it
    local_unix_s: float = 0.0  # what the drain says of an earlier look is not of this one
    # Of its manifest: the fast tier may give it up before we look.  None: not known yet.
    content_id: str | None = None
    unread_s: float = math.inf  # since then it cannot be read
