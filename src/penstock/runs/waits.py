"""Blocking calls: from a log's events to the tables `blocked` and `blocked_totals`.  Knows no file
and no engine: arrays in, arrays and SQL out.

Waits have separate tables, so no sum of file calls can include waits.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.log.events import Events
from penstock.log.layout import OPS, PHASES

__all__ = [
    "BLOCKED",
    "BLOCKED_SELECT",
    "IS_WAIT",
    "OBJECTS",
    "PHASE_SQL",
    "STORED_SELECT",
    "TOTALS",
    "TOTALS_SELECT",
    "Objects",
    "blocked_columns",
    "totals_columns",
]

Array = NDArray[Any]

IS_WAIT: Array = np.zeros(256, bool)
IS_WAIT[[op.number for op in OPS if op.layer == "wait"]] = True
# For _NET_OPS, the offset is the file id of the awaited descriptor; else the offset is an address.
_HAS_DESCRIPTOR: Array = np.zeros(256, bool)
_NET_OPS = ("poll", "select", "epoll", "receive", "send")
_HAS_DESCRIPTOR[[op.number for op in OPS if op.name in _NET_OPS]] = True
# The `moved` field of a receiving op is a number of bytes; of other ops, the waker thread.
_RECEIVES: Array = _HAS_DESCRIPTOR.copy()

# CPython threads wait for the interpreter lock by a condition variable, and for all else by
# semaphores (Python/thread_pthread.h).  The object is the library, or a program with the library.
_INTERPRETER = re.compile(r"(lib)?python[0-9.]*[a-z]*(-dbg)?(\.so[0-9.]*)?")

# {column: type}, as in Parquet.
BLOCKED = {
    "process": "INTEGER",
    "thread": "INTEGER",
    "op_number": "UTINYINT",
    "errno": "SMALLINT",
    "object": "INTEGER",
    "descriptor": "INTEGER",
    "address": "BIGINT",
    "waker": "INTEGER",
    "received": "BIGINT",
    "phase": "UTINYINT",
    "start_ns": "BIGINT",
    "duration_ns": "BIGINT",
    "step": "INTEGER",
}
OBJECTS = {
    "object": "INTEGER",
    "name": "VARCHAR",
    "path": "VARCHAR",
    "is_interpreter": "BOOLEAN",
}
TOTALS = {
    "process": "INTEGER",
    "op_number": "UTINYINT",
    "object": "INTEGER",
    "calls": "BIGINT",
    "errors": "BIGINT",
    "duration_ns": "BIGINT",
    "max_duration_ns": "BIGINT",
    "first_ns": "BIGINT",
    "last_ns": "BIGINT",
}

STORED_SELECT = """
    SELECT process::INTEGER AS process, thread::INTEGER AS thread, op_number::UTINYINT AS op_number,
        errno::SMALLINT AS errno, nullif(object::INTEGER, -1) AS object,
        nullif(descriptor::INTEGER, -1) AS descriptor, nullif(address::BIGINT, -1) AS address,
        nullif(waker::INTEGER, -1) AS waker, nullif(received::BIGINT, -1) AS received,
        nullif(phase::UTINYINT, 0) AS phase, start_ns::BIGINT AS start_ns,
        nullif(duration_ns::BIGINT, -1) AS duration_ns,
        nullif(step::INTEGER, -1) AS step
    FROM part"""

PHASE_SQL = (
    "CASE {0} "
    + " ".join(f"WHEN {number} THEN '{phase}'" for number, phase in PHASES.items())
    + " END"
)
_GROUP = (
    "CASE WHEN o.op = 'cond_wait' AND b.is_interpreter THEN 'interpreter lock'"
    " ELSE o.op_group END AS op_group"
)
BLOCKED_SELECT = f"""
    SELECT w.process, w.thread, o.op, {_GROUP}, b.name AS object, b.path AS object_path,
        w.address, f.path AS descriptor, w.waker, w.received AS received_bytes,
        {PHASE_SQL.format("w.phase")} AS phase, w.start_ns, w.duration_ns, w.errno, w.step
    FROM blocked_raw w JOIN ops o ON o.op_number = w.op_number
        LEFT JOIN objects b ON b.object = w.object LEFT JOIN files f ON f.file = w.descriptor"""
TOTALS_SELECT = f"""
    SELECT t.process, o.op, {_GROUP}, b.name AS object, t.calls, t.errors, t.duration_ns,
        t.max_duration_ns, t.first_ns, t.last_ns
    FROM blocked_totals_raw t JOIN ops o ON o.op_number = t.op_number
        LEFT JOIN objects b ON b.object = t.object"""


class Objects:
    """The waiting programs and libraries of a run, numbered by path."""

    def __init__(self, paths: Collection[str]) -> None:
        self.numbers = {path: number for number, path in enumerate(sorted(set(paths)))}

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table OBJECTS."""
        rows = []
        for path, number in self.numbers.items():
            name = PurePosixPath(path).name
            rows.append((number, name, path, bool(_INTERPRETER.fullmatch(name))))
        return rows

    def of(self, ids: Array, paths: Mapping[int, str]) -> Array:
        """Return the run's numbers of a log's ids; -1 for ids without a text."""
        distinct, places = np.unique(ids, return_inverse=True)
        numbers = [self.numbers.get(paths.get(int(number), ""), -1) for number in distinct]
        objects: Array = np.array(numbers, np.int32)[places]
        return objects


def blocked_columns(
    events: Events,
    *,
    process: int,
    threads: Array,
    first_thread: int,
    objects: Array,
    descriptors: Array,
    start_ns: Array,
    steps: Array,
) -> dict[str, Array]:
    """Return the columns of BLOCKED, -1 for unknown values.

    threads: the log's thread numbers, ascending; the first is first_thread of the run.  objects,
    descriptors: the run's numbers, one per event.
    """
    has_descriptor = _HAS_DESCRIPTOR[events.op]
    place = np.minimum(np.searchsorted(threads, events.moved), max(len(threads) - 1, 0))
    receives = _RECEIVES[events.op]
    is_known = (events.moved > 0) & (threads[place] == events.moved) & (events.duration_ns >= 0)
    is_known &= ~receives
    return {
        "process": np.full(len(events), process, np.int32),
        "thread": (first_thread + np.searchsorted(threads, events.thread)).astype(np.int32),
        "op_number": events.op,
        "errno": events.errno.astype(np.int16),
        "object": objects,
        "descriptor": np.where(has_descriptor, descriptors, -1).astype(np.int32),
        "address": np.where(has_descriptor, -1, events.offset),
        "waker": np.where(is_known, first_thread + place, -1).astype(np.int32),
        "received": np.where(receives, events.moved, -1),
        "phase": np.where(receives, np.minimum(events.asked, 255), 0).astype(np.uint8),
        "start_ns": start_ns,
        "duration_ns": events.duration_ns,
        "step": steps.astype(np.int32),
    }


def totals_columns(
    records: Array, *, process: int, objects: Array, sums: Mapping[str, Array]
) -> dict[str, Any]:
    """Return the columns of TOTALS from folded counters of waits.

    sums: the columns of plain sums.
    """
    return {
        "process": np.full(len(records), process, np.int32),
        "op_number": records["op"].astype(np.uint8),
        "object": np.ma.masked_less(objects, 0),
        **sums,
    }
