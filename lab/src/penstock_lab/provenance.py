"""LMDBIO's provenance formula, and its distance from the true place of the records.

LMDBIO (Pumma et al. 2019) finds the pages of an LMDB's records without reading any page: LMDBIO
computes from the history of the file how LMDB gave out pages, record by record.  The formula is
kept here as history, beside the error: nothing in `feed` uses the formula, as an index of the leaf
pages is exact for any file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock_lab import ladder, study
from penstock_lab.folders import work_in
from penstock_lab.needs import imported
from penstock_lab.study import KeptRuns, Measure, Point, Study, StudyResult

__all__ = [
    "HISTORIES",
    "SIZES",
    "MeasuredLmdb",
    "Provenance",
    "markdown",
    "measure",
    "needed_bytes",
    "predicted_pages",
    "write_results",
]

Numbers = NDArray[np.int64]

SIZES = (3_000, 5_000, 12_345, 30_670)  # on 1, 2, 4 and 8 pages
KEY_BYTES = 8
PAGE_BYTES = 4096  # of all files written here: LMDB takes the system's size
HEADER_BYTES, NODE_BYTES, POINTER_BYTES, NUMBER_BYTES = 16, 8, 2, 8  # data version 1
FIRST_PAGE = 2  # behind the two meta pages


@dataclass(frozen=True, slots=True)
class Provenance:
    """How an LMDB was written: the whole input of the formula.  Records of equal size, on separate
    pages, put in the order of their keys.

    pages_per_record: of a value.  keys_per_leaf, keys_per_branch: the most of a page.
    records_per_commit: 0: all in a single transaction.  is_append: put with LMDB's append flag,
    which leaves a full leaf full; without the flag the last key moves on with the new key.
    """

    pages_per_record: int
    keys_per_leaf: int
    keys_per_branch: int
    records_per_commit: int = 0
    is_append: bool = False

    @classmethod
    def of(
        cls, record_bytes: int, records_per_commit: int = 0, is_append: bool = False
    ) -> Provenance:
        """Return the provenance for keys of KEY_BYTES; a leaf's node holds the number of the
        value's page."""
        room = PAGE_BYTES - HEADER_BYTES
        branch = NODE_BYTES + KEY_BYTES + POINTER_BYTES
        return cls(
            -(-(HEADER_BYTES + record_bytes) // PAGE_BYTES),
            room // (branch + NUMBER_BYTES),
            1 + (room - NODE_BYTES - POINTER_BYTES) // branch,  # the first node has no key
            records_per_commit,
            is_append,
        )


class _Allocator:
    """LMDB's allocation of pages by the formula: at the file's end, except pages of the tree freed
    two transactions ago."""

    def __init__(self) -> None:
        self.next = FIRST_PAGE
        self._reusable = 0
        self._freed = [0, 0]  # by the earlier transaction, by the present one
        self._has_list = False  # a page with the numbers of free pages

    def tree_page(self) -> None:
        if self._reusable:
            self._reusable -= 1
        else:
            self.next += 1

    def commit(self, depth: int) -> None:
        """End a transaction, and make the copies of the tree's path for the next."""
        if self._freed[1]:  # the first free pages have no earlier list
            self._freed[1] += self._has_list
            self._has_list = True
            self.tree_page()
        self._reusable += self._freed[0]
        self._freed = [self._freed[1], depth]
        for _ in range(depth):
            self.tree_page()


def predicted_pages(written: Provenance, n: int) -> Numbers:
    """(n,): the first page of each record's value, in the order of the keys, by the formula."""
    pages = np.empty(n, np.int64)
    allocator = _Allocator()
    allocator.tree_page()  # the root, a leaf
    in_leaf = 0
    in_branches: list[int] = []  # keys of the rightmost branch of each level, from the leaves up
    for record in range(n):
        if written.records_per_commit and record and not record % written.records_per_commit:
            allocator.commit(1 + len(in_branches))
        if in_leaf == written.keys_per_leaf:
            allocator.tree_page()
            in_leaf = 0 if written.is_append else 1
            _grow(written, in_branches, allocator)
        in_leaf += 1
        pages[record] = allocator.next
        allocator.next += written.pages_per_record
    return pages


def _grow(written: Provenance, in_branches: list[int], allocator: _Allocator) -> None:
    """A leaf more: a full branch adds a page, a full root adds a level."""
    for level, n_keys in enumerate(in_branches):
        if n_keys < written.keys_per_branch:
            in_branches[level] += 1
            return
        allocator.tree_page()
        in_branches[level] = 2
    allocator.tree_page()
    in_branches.append(2)


# --- the error ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredLmdb:
    """An LMDB: the formula's result against the leaf pages.

    n_wrong: records predicted on another page.  first_wrong: the first wrong record, or None.
    most_pages: the distance of the worst record.  tree_pages: branch and leaf pages, as read by an
    index.
    """

    history: str
    record_bytes: int
    n_records: int
    n_wrong: int
    first_wrong: int | None
    most_pages: int
    tree_pages: int


@dataclass(frozen=True, slots=True)
class _History:
    """A way to write n records; the formula receives all describable parts."""

    name: str
    records_per_commit: int = 0
    is_append: bool = False
    is_shuffled: bool = False
    put_again: int = 0  # each so many'th record is deleted and put again, at the end
    varies_by: float = 0.0  # sizes below the formula's size, the largest size


HISTORIES = (
    _History("in order, one transaction"),
    _History("in order, a commit each 1,000", 1000),
    _History("in order, a commit each 100", 100),
    _History("in order, a commit each 10", 10),
    _History("append flag, a commit each 1,000", 1000, is_append=True),
    _History("in order, sizes up to 10 % less", 1000, varies_by=0.1),
    _History("in order, then each 10th deleted and put again", 1000, put_again=10),
    _History("in random order, a commit each 1,000", 1000, is_shuffled=True),
)


def needed_bytes(n: int, sizes: Sequence[int] = SIZES) -> int:
    """Return the room for the largest LMDB: a tenth of the records is put again, and a transaction
    leaves the tree's earlier pages."""
    pages = n * Provenance.of(max(sizes)).pages_per_record
    return int(1.25 * pages) * PAGE_BYTES + (1 << 20)


def measure(
    folder: Path,
    n: int = 4000,
    sizes: Sequence[int] = SIZES,
    histories: Sequence[_History] = HISTORIES,
    progress: Callable[[int, int], None] | None = None,
    seed: int = 1,
) -> list[MeasuredLmdb]:
    """Write an LMDB of n records of each size in each way, and compare the formula with the index.
    The LMDBs lie in folder one after the other and are removed.  Counts alone, no times.

    Raises TierError: an LMDB cannot be written; MissingDependency.
    """
    databases = []
    for number, (history, size) in enumerate((each, size) for each in histories for size in sizes):
        with work_in(folder) as work:
            tree_pages = _write(work / "lmdb", history, n, size, np.random.default_rng(seed))
            databases.append(_compared(work / "lmdb", history, n, size, tree_pages))
        if progress is not None:
            progress(number + 1, len(histories) * len(sizes))
    return databases


def _compared(path: Path, history: _History, n: int, size: int, tree_pages: int) -> MeasuredLmdb:
    from penstock.feed.index import open_index

    written = Provenance.of(size, history.records_per_commit, history.is_append)
    exact = open_index(path, cache=False).offset // PAGE_BYTES
    away = np.abs(predicted_pages(written, n) - exact)
    wrong = np.flatnonzero(away)
    first = int(wrong[0]) if len(wrong) else None
    return MeasuredLmdb(
        history.name, size, n, len(wrong), first, int(away.max(initial=0)), tree_pages
    )


def _write(path: Path, history: _History, n: int, size: int, random: np.random.Generator) -> int:
    """The pages of the tree."""
    lmdb = imported("lmdb", ladder.NEEDS["lmdb"])

    path.mkdir()
    order = random.permutation(n) if history.is_shuffled else np.arange(n)
    again = np.arange(0, n, history.put_again) if history.put_again else np.arange(0)
    least = size - int(history.varies_by * size)
    values = [bytes(n_bytes) for n_bytes in random.integers(least, size, n, endpoint=True).tolist()]
    room = 2 * (n + len(again)) * (size + 3 * PAGE_BYTES) + (16 << 20)
    try:
        return _put(lmdb.open(str(path), map_size=room, sync=False), history, order, again, values)
    except lmdb.Error as error:
        raise TierError(f"{path}: cannot be written, the disk may be full: {error}") from error


def _put(
    database: Any, history: _History, order: Numbers, again: Numbers, values: Sequence[bytes]
) -> int:
    with database as env:
        for part in _transactions(order, history.records_per_commit):
            with env.begin(write=True) as transaction:
                for record in part.tolist():
                    transaction.put(_key(record), values[record], append=history.is_append)
        for change in ("delete", "put"):
            for part in _transactions(again, history.records_per_commit):
                with env.begin(write=True) as transaction:
                    for record in part.tolist():
                        if change == "delete":
                            transaction.delete(_key(record))
                        else:
                            transaction.put(_key(record), values[record])
        state = env.stat()
        pages: int = state["leaf_pages"] + state["branch_pages"]
        return pages


def _key(record: int) -> bytes:
    return b"%0*d" % (KEY_BYTES, record)


def _transactions(order: Numbers, records_per_commit: int) -> Iterator[Numbers]:
    step = records_per_commit or max(1, len(order))
    return (order[start : start + step] for start in range(0, len(order), step))


def markdown(databases: Sequence[MeasuredLmdb]) -> str:
    """The table of the docs: a row for each way to write, a column for each size."""
    sizes = sorted({each.record_bytes for each in databases})
    lines = [
        "| written | " + " | ".join(f"{size:,} B" for size in sizes) + " |",
        "| --- " * (1 + len(sizes)) + "|",
    ]
    for name in dict.fromkeys(each.history for each in databases):
        row = {each.record_bytes: each for each in databases if each.history == name}
        lines.append(f"| {name} | " + " | ".join(_cell(row[size]) for size in sizes) + " |")
    return "\n".join(lines)


STUDY = Study(
    "provenance",
    "LMDBIO's formula, and its error",
    ("history", "record_bytes"),
    (
        Measure("wrong", "on another page", "share", -1),
        Measure("first_wrong", "the first of them", "count"),
        Measure("most_pages", "pages away, at most", "count", -1),
        Measure("tree_pages", "pages that an index reads", "count"),
    ),
)


def write_results(folder: Path, databases: Sequence[MeasuredLmdb], n: int, seed: int) -> list[Path]:
    """Write provenance.md, .csv and .json, in the form for `bench compare`.  Raises TierError."""
    points, rows = [], []
    for each in databases:
        row = asdict(each)
        values = {"wrong": each.n_wrong / each.n_records} | row
        numbers = {measure.key: values[measure.key] for measure in STUDY.measures}
        none = dict.fromkeys(numbers)
        points.append(Point({key: row[key] for key in STUDY.factors}, 1, numbers, none, none))
        rows.append(row)
    mark = {"study": "provenance", "records": n, "seed": seed}
    kept = KeptRuns(folder, mark)
    result = StudyResult(STUDY, "", mark, kept.machine(), points, rows, [], {})
    texts = {
        "provenance.json": json.dumps(study.value_of(result), indent=1),
        "provenance.csv": study.csv_of(rows),
        "provenance.md": markdown(databases) + "\n",
    }
    return study.write_texts(folder, texts)


def _cell(each: MeasuredLmdb) -> str:
    if each.first_wrong is None:
        return "exact"
    share = 100 * each.n_wrong / each.n_records
    return f"{share:.1f} % wrong, from record {each.first_wrong:,}, up to {each.most_pages:,} pages"
