"""The records of requests in the logs, as columns of the table `requests`.  Knows no engine."""

from array import array
from collections.abc import Callable

import numpy as np

from penstock.log.layout import REQUEST, REQUEST_FLAGS
from penstock.log.texts import Text
from penstock.runs.tables.sources import LogSource
from penstock.runs.tables.stored import INT64_MAX, Array, utf8

__all__ = ["RequestTexts"]

NAMES = ("endpoint", "method", "operation", "client", "bucket", "error")
NONE = (1 << 64) - 1  # a time without a measurement


class RequestTexts:
    """The requests in the texts of one log; repeated texts are kept once."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._texts: dict[str, int] = {}
        self._names, self._paths = array("I"), array("I")

    def add(self, text: Text) -> None:
        if text.more:
            self._records += text.more
            self._names.append(self._texts.setdefault(text.name, len(self._texts)))
            self._paths.append(self._texts.setdefault(text.resolved, len(self._texts)))

    def columns(
        self, source: LogSource, steps_at: Callable[[Array], Array] | None
    ) -> dict[str, Array] | None:
        """Return the rows by column, in order of start; None without requests.

        steps_at: the training step at times of the run; None: the process has no steps.
        """
        if not self._records:
            return None
        records = np.frombuffer(self._records, REQUEST)
        # Of records with equal numbers, only the latest counts.
        order = np.lexsort((records["told"], records["number"]))
        numbers = records["number"][order]
        order = order[np.append(numbers[1:] != numbers[:-1], True)]
        told_ns = source.log.to_ns(records["told"], source.ns_per_tick)
        start_ns = told_ns + source.shift_ns - _signed(records["ago"])
        order = order[np.argsort(start_ns[order], kind="stable")]
        records, start_ns = records[order], start_ns[order]
        columns = _measured(records)
        columns |= {
            "process": np.full(len(records), source.process, np.int32),
            "thread": _threads(source, records["tid"]),
            "start_ns": start_ns,
            "step": _masked(steps_at(start_ns).astype(np.int32), np.less, 0)
            if steps_at
            else _masked(np.full(len(records), -1, np.int32), np.less, 0),
        }
        return columns | self._words(order)

    def _words(self, order: Array) -> dict[str, Array]:
        texts = [utf8(text) for text in self._texts]
        split = [(text.split("\t") + [""] * len(NAMES))[: len(NAMES)] for text in texts]
        names = np.frombuffer(self._names, np.uint32)[order]
        paths = np.frombuffer(self._paths, np.uint32)[order]
        words = {
            name: np.array([words[at] or None for words in split], object)[names]
            for at, name in enumerate(NAMES)
        }
        words["path"] = np.array([text or None for text in texts], object)[paths]
        return words


def _measured(records: Array) -> dict[str, Array]:
    flags, first_byte = records["flags"], records["first_byte"]
    return {
        "request": _signed(records["number"]),
        "connection": _masked(_signed(records["connection"]), np.equal, 0),
        "status": _masked(records["status"].astype(np.int16), np.equal, 0),
        "first_byte_ns": np.ma.masked_where(first_byte == NONE, _signed(first_byte)),
        "duration_ns": _signed(records["duration"]),
        "received_bytes": _signed(records["received"]),
        "sent_bytes": _masked(records["sent"], np.less, 0),
        "range_offset_bytes": _masked(records["range_first"], np.less, 0),
        "range_bytes": _masked(records["range_length"], np.less, 0),
        "object_bytes": _masked(records["object_bytes"], np.less, 0),
        "attempt": records["attempt"].astype(np.int32),
        "backoff_ns": _signed(records["backoff"]),
        "is_part": flags & REQUEST_FLAGS["part"] != 0,
        "is_operation": flags & REQUEST_FLAGS["operation"] != 0,
        "batch": _masked(records["batch"], np.less, 0),
        "requests": _signed(records["requests"]),
    }


def _signed(values: Array) -> Array:
    return np.minimum(values, np.uint64(INT64_MAX >> 4)).astype(np.int64)


def _masked(values: Array, compare: Callable[[Array, int], Array], limit: int) -> Array:
    return np.ma.masked_where(compare(values, limit), values)


def _threads(source: LogSource, tids: Array) -> Array:
    """Return by tid the number, in the table of threads, of the latest thread with the tid."""
    numbers = {thread.tid: at for at, thread in enumerate(source.log.threads)}
    distinct, inverse = np.unique(tids, return_inverse=True)
    threads = np.array([numbers.get(int(tid), -1) for tid in distinct], np.int32)[inverse]
    return np.ma.masked_where(threads < 0, threads + source.first_thread)
