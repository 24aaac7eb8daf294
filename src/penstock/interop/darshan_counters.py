"""Compute Darshan's counters from calls, by Darshan's definitions; Penstock's definitions differ.
Knows no file format and no run.

The definitions are from darshan-posix.c, darshan-stdio.c and darshan-common.c in 3.5: a wrapper's
state of a file between calls, and the change of the file's record by each call.  -1 is Darshan's
value for an unmeasured counter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.runs.tables import Array

__all__ = ["KINDS", "TIMERS", "Records", "count", "rows"]

# The kinds of calls in queries/darshan_kinds.sql; their numbers here start with 1.
KINDS = (
    "open",
    "fdopen",
    "dup",
    "close",
    "seek",
    "stat",
    "rename",
    "renamed",
    "mmap",
    "read",
    "write",
    "sync",
    "datasync",
    "flush",
)
TIMERS = ("read", "write", "metadata")
_NUMBER = {name: number for number, name in enumerate(KINDS, 1)}

# DARSHAN_BUCKET_INC: the upper bounds of the classes of sizes, each included.
BUCKETS = (100, 1024, 10240, 102400, 1048576, 4194304, 10485760, 104857600, 1073741824)
SIZES = (
    "0_100",
    "100_1K",
    "1K_10K",
    "10K_100K",
    "100K_1M",
    "1M_4M",
    "4M_10M",
    "10M_100M",
    "100M_1G",
    "1G_PLUS",
)
ALIGNMENT_BYTES = 4096  # of the file: the block size of nearly every file system

_COUNTED = {
    "OPENS": ("open", "fdopen", "dup"),
    "FDOPENS": ("fdopen",),
    "DUPS": ("dup",),
    "READS": ("read",),
    "WRITES": ("write",),
    "SEEKS": ("seek",),
    "STATS": ("stat",),
    "MMAPS": ("mmap",),
    "FSYNCS": ("sync",),
    "FDSYNCS": ("datasync",),
    "FLUSHES": ("flush",),
    "RENAME_SOURCES": ("rename",),
    "RENAME_TARGETS": ("renamed",),
}
# Penstock records no fileno, no mode of an open and no address of a buffer.
_UNKNOWN = ("FILENOS", "MODE", "MEM_NOT_ALIGNED", "MEM_ALIGNMENT")
# Counters that depend on the order of calls.
_OF_ORDER = {
    "read": ("CONSEC_READS", "SEQ_READS"),
    "write": ("CONSEC_WRITES", "SEQ_WRITES"),
    "both": ("RW_SWITCHES", "FILE_NOT_ALIGNED")
    + tuple(f"STRIDE{i}_{part}" for i in range(1, 5) for part in ("STRIDE", "COUNT")),
}
_OF_SIZE = tuple(f"ACCESS{i}_{part}" for i in range(1, 5) for part in ("ACCESS", "COUNT"))
_STAMPS = {"OPEN": ("open", "fdopen", "dup"), "READ": ("read",), "CLOSE": ("close",)}
_STAMPS |= {"WRITE": ("write", "flush")}
_TIME_NAMES = {"read": "F_READ_TIME", "write": "F_WRITE_TIME", "metadata": "F_META_TIME"}

Columns = Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of a layer: (file number, rank), and by name the counters, a value per record.

    rank -1: the record of all ranks together.  Times are seconds from the run's start.
    RENAMED_FROM is a file's number, -1 for none.
    """

    number: Array
    rank: Array
    counters: dict[str, Array]


def count(calls: Columns, folded: Columns, n_ranks: int) -> Records:
    """Return the records of a layer.

    calls: columns of queries/darshan_calls.sql, in the query's order.  folded: columns of
    darshan_folded.sql.  A file touched by every one of several ranks has one record of rank -1.
    """
    return _Count(calls, folded, n_ranks).records()


class _Count:
    """The record of each call of a layer, and sums over records."""

    def __init__(self, calls: Columns, folded: Columns, n_ranks: int) -> None:
        import numpy as np

        self.calls, self.folded = calls, folded
        # A key for each file and rank, before and after ranks are joined.
        keys = [columns["number"].astype(np.int64) * n_ranks + columns["rank"] for columns in
                (calls, folded)]  # fmt: skip
        singles, at = np.unique(np.concatenate(keys), return_inverse=True)
        number, rank = singles // n_ranks, singles % n_ranks
        _, of_file, ranks_of_file = np.unique(number, return_inverse=True, return_counts=True)
        is_shared = (n_ranks > 1) & (ranks_of_file[of_file] == n_ranks)
        rank = np.where(is_shared, -1, rank)
        records, self.record_of_single = np.unique(
            number * (n_ranks + 1) + rank + 1, return_inverse=True
        )
        self.n = len(records)
        self.number, self.rank = records // (n_ranks + 1), records % (n_ranks + 1) - 1
        self.single, self.folded_single = at[: len(keys[0])], at[len(keys[0]) :]
        self.at = self.record_of_single[self.single]
        self.folded_at = self.record_of_single[self.folded_single]
        self.rank_of_single = singles % n_ranks
        self.counters: dict[str, Array] = {}

    def records(self) -> Records:
        self._count_calls()
        self._count_bytes()
        self._judge_order()
        self._sum_times()
        self._compare_ranks()
        self._give_up_unknown()
        return Records(self.number, self.rank, self.counters)

    def _is(self, columns: Columns, *kinds: str) -> Array:
        import numpy as np

        return np.isin(columns["kind"], [_NUMBER[kind] for kind in kinds])

    def _sum(self, mask: Array, weights: Array | None = None) -> Array:
        """Return by record the number of the calls, or a sum over the calls."""
        import numpy as np

        picked = None if weights is None else weights[mask].astype(np.float64)
        sums: Array = np.bincount(self.at[mask], picked, minlength=self.n)
        return sums.astype(np.int64)

    def _sum_folded(self, mask: Array, name: str) -> Array:
        import numpy as np

        weights = self.folded[name][mask].astype(np.float64)
        return np.bincount(self.folded_at[mask], weights, minlength=self.n).astype(np.int64)

    def _most(self, mask: Array, values: Array, folded: Array, folded_values: Array) -> Array:
        """Return by record the largest value, 0 without a value."""
        import numpy as np

        most = np.zeros(self.n, np.int64)
        np.maximum.at(most, self.at[mask], values[mask])
        np.maximum.at(most, self.folded_at[folded], folded_values[folded])
        return most

    def _count_calls(self) -> None:
        import numpy as np

        for name, kinds in _COUNTED.items():
            self.counters[name] = self._sum(self._is(self.calls, *kinds)) + self._sum_folded(
                self._is(self.folded, *kinds), "calls"
            )
        # The first rename counts; further renames to the same name change nothing.
        at = np.flatnonzero(self._is(self.calls, "renamed"))
        at = at[np.argsort(self.calls["start_ns"][at], kind="stable")][::-1]
        self.counters["RENAMED_FROM"] = np.full(self.n, -1)
        self.counters["RENAMED_FROM"][self.at[at]] = self.calls["other_number"][at]

    def _count_bytes(self) -> None:
        import numpy as np

        calls, folded = self.calls, self.folded
        end = calls["offset_bytes"] + calls["moved_bytes"] - 1
        for kind, done, noun in (("read", "READ", "READ"), ("write", "WRITTEN", "WRITE")):
            is_kind, is_folded = self._is(calls, kind), self._is(folded, kind)
            self.counters[f"BYTES_{done}"] = self._sum(
                is_kind, calls["moved_bytes"]
            ) + self._sum_folded(is_folded, "moved_bytes")
            self.counters[f"MAX_BYTE_{done}"] = self._most(
                is_kind, end, is_folded, folded["max_end_bytes"] - 1
            )
            bucket = np.searchsorted(BUCKETS, calls["moved_bytes"], side="left")
            for i, size in enumerate(SIZES):
                self.counters[f"SIZE_{noun}_{size}"] = self._sum(
                    is_kind & (bucket == i)
                ) + self._sum_folded(is_folded, f"bucket_{i}")

    def _before(self, mask: Array, values: Array) -> Array:
        """Return for each call of the mask the value of the call before, of the same process and
        file; 0 for the first.  Calls are sorted by process and file."""
        import numpy as np

        before = np.zeros(len(mask), np.int64)
        at = np.flatnonzero(mask)
        if len(at):
            same = np.ones(len(at), bool)
            same[0] = False
            for name in ("process", "number"):
                same[1:] &= self.calls[name][at[1:]] == self.calls[name][at[:-1]]
            before[at[1:]] = values[at[:-1]]
            before[at[~same]] = 0
        return before

    def _judge_order(self) -> None:
        """Compute sequential, consecutive, strides, switches, alignment: POSIX_RECORD_READ and
        _WRITE."""
        import numpy as np

        calls = self.calls
        offset = calls["offset_bytes"]
        end = offset + calls["moved_bytes"] - 1
        resets = self._is(calls, "open", "close")
        stride = np.zeros(len(end), np.int64)
        for kind, noun in (("read", "READS"), ("write", "WRITES")):
            is_kind = self._is(calls, kind)
            last = self._before(is_kind | resets, np.where(is_kind, end, 0))
            self.counters[f"SEQ_{noun}"] = self._sum(is_kind & (offset > last))
            self.counters[f"CONSEC_{noun}"] = self._sum(is_kind & (offset == last + 1))
            is_ahead = is_kind & (offset > 0) & (offset > last) & (last != 0)
            stride[is_ahead] = (offset - last - 1)[is_ahead]
        moves = self._is(calls, "read", "write")
        before = self._before(moves, calls["kind"].astype(np.int64))
        switched = moves & (before > 0) & (before != calls["kind"])
        self.counters["RW_SWITCHES"] = self._sum(switched)
        self.counters["FILE_NOT_ALIGNED"] = self._sum(moves & (offset % ALIGNMENT_BYTES != 0))
        self.counters["FILE_ALIGNMENT"] = np.full(self.n, ALIGNMENT_BYTES)
        self._commonest("ACCESS", moves, calls["moved_bytes"])
        self._commonest("STRIDE", moves, stride)

    def _commonest(self, name: str, mask: Array, values: Array) -> None:
        """Store the four commonest non-zero values: most calls first, then the larger value."""
        import numpy as np

        mask = mask & (values > 0)
        order = np.lexsort((values[mask], self.at[mask]))
        at, value = self.at[mask][order], values[mask][order]
        starts = np.flatnonzero(np.r_[True, (at[1:] != at[:-1]) | (value[1:] != value[:-1])])
        starts = starts[: len(at)]
        n_calls = np.diff(np.r_[starts, len(at)])
        at, value = at[starts], value[starts]
        order = np.lexsort((-value, -n_calls, at))
        at, value, n_calls = at[order], value[order], n_calls[order]
        place = np.arange(len(at)) - np.searchsorted(at, at, side="left")
        for i in range(4):
            for part, column in ((name, value), ("COUNT", n_calls)):
                cells = np.zeros(self.n, np.int64)
                cells[at[place == i]] = column[place == i]
                self.counters[f"{name}{i + 1}_{part}"] = cells

    def _sum_times(self) -> None:
        """Compute DARSHAN_TIMER_INC_NO_OVERLAP, first and last moments, the longest call."""
        import numpy as np

        calls, folded = self.calls, self.folded
        start_ns, end_ns = calls["start_ns"], calls["end_ns"]
        self.spent_ns = np.zeros(len(start_ns), np.int64)
        for number, timer in enumerate(TIMERS, 1):
            is_timed, is_folded = calls["timer"] == number, folded["timer"] == number
            before_ns = self._before(is_timed, end_ns)
            ns = np.where(is_timed, end_ns - np.maximum(start_ns, before_ns), 0)
            self.spent_ns += ns
            total = self._sum(is_timed, ns) + self._sum_folded(is_folded, "duration_ns")
            self.counters[_TIME_NAMES[timer]] = total / 1e9
        for name, kinds in _STAMPS.items():
            is_kind, is_folded = self._is(calls, *kinds), self._is(folded, *kinds)
            first = np.full(self.n, np.iinfo(np.int64).max)
            np.minimum.at(first, self.at[is_kind], start_ns[is_kind])
            np.minimum.at(first, self.folded_at[is_folded], folded["first_ns"][is_folded])
            first[first == np.iinfo(np.int64).max] = 0
            last = self._most(is_kind, end_ns, is_folded, folded["last_ns"])
            self.counters[f"F_{name}_START_TIMESTAMP"] = np.maximum(first, 0) / 1e9
            self.counters[f"F_{name}_END_TIMESTAMP"] = last / 1e9
        for kind, noun in (("read", "READ"), ("write", "WRITE")):
            self._longest(kind, noun)

    def _longest(self, kind: str, noun: str) -> None:
        import numpy as np

        calls, folded = self.calls, self.folded
        is_kind = self._is(calls, kind)
        at, ns = self.at[is_kind], (calls["end_ns"] - calls["start_ns"])[is_kind]
        most, size = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        np.maximum.at(most, at, ns)
        # Of equally long calls the first counts, as with `<`: written last.
        longest = np.flatnonzero(ns == most[at])[::-1]
        size[at[longest]] = calls["moved_bytes"][is_kind][longest]
        is_folded = self._is(folded, kind)
        past = self._most(np.zeros(len(calls["kind"]), bool), calls["end_ns"], is_folded,
                          folded["max_duration_ns"])  # fmt: skip
        self.counters[f"F_MAX_{noun}_TIME"] = np.maximum(most, past) / 1e9
        self.counters[f"MAX_{noun}_TIME_SIZE"] = np.where(past > most, -1, size)

    def _compare_ranks(self) -> None:
        """Compute for records of all ranks the fastest and slowest rank, and the differences of
        ranks."""
        import numpy as np

        n = len(self.record_of_single)
        spent = np.bincount(self.single, self.spent_ns.astype(np.float64), minlength=n)
        spent += np.bincount(
            self.folded_single, self.folded["duration_ns"].astype(np.float64), minlength=n
        )
        moves, moved = self._is(self.calls, "read", "write"), self.calls["moved_bytes"]
        n_bytes = np.bincount(self.single[moves], moved[moves].astype(np.float64), minlength=n)
        moves = self._is(self.folded, "read", "write")
        n_bytes += np.bincount(
            self.folded_single[moves],
            self.folded["moved_bytes"][moves].astype(np.float64),
            minlength=n,
        )
        for name in ("FASTEST_RANK", "SLOWEST_RANK"):
            for part in (name, f"{name}_BYTES"):
                self.counters[part] = np.zeros(self.n, np.int64)
            self.counters[f"F_{name}_TIME"] = np.zeros(self.n)
        for part in ("TIME", "BYTES"):
            self.counters[f"F_VARIANCE_RANK_{part}"] = np.zeros(self.n)
        is_shared = self.rank[self.record_of_single] < 0
        of_record, s = self.record_of_single[is_shared], spent[is_shared] / 1e9
        rank, n_bytes = self.rank_of_single[is_shared], n_bytes[is_shared]
        for name, sign in (("FASTEST_RANK", 1), ("SLOWEST_RANK", -1)):
            order = np.lexsort((sign * s, of_record))
            best = order[np.r_[True, of_record[order][1:] != of_record[order][:-1]][: len(order)]]
            self.counters[name][of_record[best]] = rank[best]
            self.counters[f"{name}_BYTES"][of_record[best]] = n_bytes[best]
            self.counters[f"F_{name}_TIME"][of_record[best]] = s[best]
        for part, values in (("TIME", s), ("BYTES", n_bytes)):
            n_ranks = np.maximum(1, np.bincount(of_record, minlength=self.n))
            mean = np.bincount(of_record, values, minlength=self.n) / n_ranks
            squares = np.bincount(of_record, (values - mean[of_record]) ** 2, minlength=self.n)
            self.counters[f"F_VARIANCE_RANK_{part}"] = squares / n_ranks

    def _give_up_unknown(self) -> None:
        """Set unknown counters to -1: addresses are not recorded, and folded calls or calls without
        an offset have no position."""
        import numpy as np

        for name in _UNKNOWN:
            self.counters[name] = np.full(self.n, -1)
        either = np.zeros(self.n, bool)
        for kind in ("read", "write"):
            is_kind, is_folded = self._is(self.calls, kind), self._is(self.folded, kind)
            lost = np.bincount(self.folded_at[is_folded], minlength=self.n) > 0
            astray = self._sum(is_kind & (self.calls["offset_bytes"] < 0)) > 0
            for name in _OF_ORDER[kind]:
                self.counters[name][lost | astray] = -1
            either |= lost | astray
            if astray.any():
                self.counters["MAX_BYTE_READ" if kind == "read" else "MAX_BYTE_WRITTEN"][
                    astray
                ] = -1
        for name in _OF_ORDER["both"]:
            self.counters[name][either] = -1
        past = np.bincount(self.folded_at[self._is(self.folded, "read", "write")],
                           minlength=self.n) > 0  # fmt: skip
        for name in _OF_SIZE:
            self.counters[name][past] = -1


def rows(records: Records, names: Sequence[str]) -> Array:
    """Return the counters of the given names, a row per record: integers, or seconds for names with
    F_."""
    import numpy as np

    kind = np.float64 if names[0].startswith("F_") else np.int64
    return np.stack([records.counters[name].astype(kind) for name in names], axis=1)
