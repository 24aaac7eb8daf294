"""The Checkpointers of this process that are open, by the folder to which each saves.

Two Checkpointers of one folder would write over each other's drafts.  At the end of the program
each open one is closed.  The module knows folders, and no save.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["CLOSE_WRITER_S", "OpenPlace", "Saver", "find_open", "forget", "keep", "places_at"]

CLOSE_WRITER_S = 600.0  # a writer that hangs in a call to a dead file server is left to the kernel
log = logging.getLogger("penstock.save")


class Saver(Protocol):
    """What is known here of a Checkpointer."""

    @property
    def is_open(self) -> bool: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class OpenPlace:
    """Where a Checkpointer saves to, for as long as it is not closed.  pid: a forked child has the
    parent's objects, and none of what belongs to them."""

    pid: int
    where: tuple[str, int]  # the folder, the rank
    target: weakref.ref[Saver]
    is_idle: threading.Event = field(default_factory=threading.Event)  # no save holds it
    is_closed: threading.Event = field(default_factory=threading.Event)

    def open_one(self) -> Saver | None:
        """Return the Checkpointer that saves there; None: it is closed, or lost sight of."""
        found = self.target()
        return found if found is not None and found.is_open else None


_places: list[OpenPlace] = []


def keep(place: OpenPlace) -> None:
    """Note a place.  A program that forgets to close() still gets its last save onto the disk, and
    before the modules that are imported by now end."""
    _places.append(place)
    atexit.unregister(_close_at_exit)
    atexit.register(_close_at_exit)


def forget(place: OpenPlace) -> None:
    """Forget a place that is closed."""
    with suppress(ValueError):
        _places.remove(place)


def places_at(root: str, rank: int) -> list[OpenPlace]:
    """Return the places of this process with this folder, as os.path.realpath() names it."""
    wanted = (os.getpid(), (root, rank))
    return [place for place in list(_places) if (place.pid, place.where) == wanted]


def find_open(root: str, rank: int) -> Saver | None:
    """Return the open Checkpointer of this process that saves to this folder."""
    for place in places_at(root, rank):
        found = place.open_one()
        if found is not None:
            return found
    return None


def _close_at_exit() -> None:
    for place in [one for one in _places if one.pid == os.getpid()]:
        found = place.open_one()
        if found is not None:
            try:
                found.abandon()
            except Exception as error:  # the others are to be closed too
                log.error("%s: %r", place.where[0], error)
        else:
            place.is_closed.wait(CLOSE_WRITER_S)
