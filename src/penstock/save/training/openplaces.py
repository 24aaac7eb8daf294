"""The open Checkpointers of a process, by folder.

Two Checkpointers of one folder would write over each other's drafts.  At the end of the program
each open Checkpointer is closed.  Knows folders; knows no save.
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

CLOSE_WRITER_S = 600.0  # a writer hanging in a call to a dead file server is left to the kernel
log = logging.getLogger("penstock.save")


class Saver(Protocol):
    """The methods of a Checkpointer used here."""

    @property
    def is_open(self) -> bool: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class OpenPlace:
    """The folder of a Checkpointer, until the Checkpointer is closed.

    pid: the process that opened the Checkpointer.  A forked child inherits the parent's objects,
    but owns none of the resources behind the objects.
    """

    pid: int
    where: tuple[str, int]  # the folder, the rank
    target: weakref.ref[Saver]
    is_idle: threading.Event = field(default_factory=threading.Event)  # set while no save runs
    is_closed: threading.Event = field(default_factory=threading.Event)

    def open_one(self) -> Saver | None:
        """Return the folder's Checkpointer; None if closed or garbage-collected."""
        target = self.target()
        return target if target is not None and target.is_open else None


_places: list[OpenPlace] = []


def keep(place: OpenPlace) -> None:
    """Register a place; at exit, close the Checkpointers left open by the program.

    The last save then still reaches the disk.  Each call registers the exit handler anew: the
    handler runs before the exit handlers of modules imported earlier.
    """
    _places.append(place)
    atexit.unregister(_close_at_exit)
    atexit.register(_close_at_exit)


def forget(place: OpenPlace) -> None:
    """Remove a closed place from the register."""
    with suppress(ValueError):
        _places.remove(place)


def places_at(root: str, rank: int) -> list[OpenPlace]:
    """Return the process's places for a folder and rank.  root: as os.path.realpath() returns."""
    wanted = (os.getpid(), (root, rank))
    return [place for place in list(_places) if (place.pid, place.where) == wanted]


def find_open(root: str, rank: int) -> Saver | None:
    """Return the process's open Checkpointer for a folder and rank; None: no such Checkpointer."""
    for place in places_at(root, rank):
        open_target = place.open_one()
        if open_target is not None:
            return open_target
    return None


def _close_at_exit() -> None:
    for place in [open_place for open_place in _places if open_place.pid == os.getpid()]:
        open_target = place.open_one()
        if open_target is not None:
            try:
                open_target.abandon()
            except Exception as error:  # the other Checkpointers must be closed too
                log.error("%s: %r", place.where[0], error)
        else:
            place.is_closed.wait(CLOSE_WRITER_S)
