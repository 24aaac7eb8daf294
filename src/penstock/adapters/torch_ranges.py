"""Find the bytes of a sample in mapped files: rows of Arrow tables, and records of equal size.

Nothing of the data set's own code is called, and no page of the files is touched: an address in
memory and the table of this process's mappings give the place in the file.  Values of variable
length are described by the place of their offsets: the reader beside the job reads the offsets.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

__all__ = ["NAME", "Mapped", "Range", "arrow_rows", "records"]

# Kinds of a range; keep in step with native/ahead/ahead.h
NAME, BYTES, OFFSETS_32, OFFSETS_64 = range(4)
LEAST_BYTES = 1 << 20  # a smaller array is a few page faults
MOST_WINDOW_BYTES = 1 << 20  # of overlapping records


class Range(NamedTuple):
    """Bytes of a file.

    OFFSETS: the file has two numbers at `at`, the first item and the end, of items of `width`
    bytes; the items begin at `offset` and have `bytes` bytes in all.
    """

    path: str
    kind: int
    width: int
    offset: int
    bytes: int
    at: int


Rows = Callable[[int], Sequence[Range]]


class Mapped:
    """The mapped files of this process, by address."""

    def __init__(self) -> None:
        mappings = []
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                words = line.rstrip("\n").split(None, 5)
                if len(words) < 6 or words[5][0] != "/" or words[5].endswith(" (deleted)"):
                    continue
                start, end = (int(word, 16) for word in words[0].split("-"))
                mappings.append((start, end, int(words[2], 16), words[5]))
        self._mappings = sorted(mappings)
        self._starts = [mapping[0] for mapping in self._mappings]

    def place(self, address: int, n_bytes: int) -> tuple[str, int] | None:
        """Return the file and the offset of bytes in memory; None: not of a mapped file."""
        number = bisect_right(self._starts, address) - 1
        if number < 0:
            return None
        start, end, offset, path = self._mappings[number]
        if address + n_bytes > end:
            return None
        return path, address - start + offset


# Arrow


def arrow_rows(dataset: Any, mapped: Mapped) -> Rows | None:
    """Return where the rows of a Hugging Face data set are; None: not in mapped files."""
    arrow = sys.modules.get("pyarrow")
    kinds = type(dataset).__mro__
    if arrow is None or not any(kind.__module__.startswith("datasets.") for kind in kinds):
        return None
    table = getattr(dataset.__dict__.get("_data"), "table", None)
    if not isinstance(table, arrow.Table) or not table.num_rows:
        return None
    names = dataset.__dict__.get("_format_columns")
    rows = _table_rows(arrow, table if names is None else table.select(names), mapped)
    indices = dataset.__dict__.get("_indices")
    if rows is None or indices is None:
        return rows
    numbers, of_table = indices.table.column(0), rows
    return lambda number: of_table(numbers[number].as_py())


class _Column(NamedTuple):
    """A column of a batch: `at` and `step` give the place of a row, or of its offsets."""

    path: str
    kind: int
    width: int
    offset: int
    bytes: int
    at: int
    step: int

    def row(self, row: int) -> Range:
        at = self.at + row * self.step
        if self.kind == BYTES:
            return Range(self.path, BYTES, 1, at, self.step, 0)
        return Range(self.path, self.kind, self.width, self.offset, self.bytes, at)


def _table_rows(arrow: Any, table: Any, mapped: Mapped) -> Rows | None:
    batches = table.to_batches()
    ends = list(accumulate(batch.num_rows for batch in batches))
    located: dict[int, list[_Column]] = {}

    def columns(part: int) -> list[_Column]:
        if part not in located:
            arrays = batches[part].columns
            located[part] = [c for array in arrays for c in _columns(arrow, array, mapped)]
        return located[part]

    def rows(number: int) -> Sequence[Range]:
        part = bisect_right(ends, number)
        row = number - (ends[part - 1] if part else 0)
        return [column.row(row) for column in columns(part)]

    return rows if any(map(columns, {0, len(ends) // 2, len(ends) - 1})) else None


def _columns(arrow: Any, array: Any, mapped: Mapped) -> Iterator[_Column]:
    types = arrow.types
    if isinstance(array, arrow.ExtensionArray):
        array = array.storage
    kind = array.type
    if types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _columns(arrow, array.field(number), mapped)
    elif types.is_dictionary(kind):
        yield from _columns(arrow, array.indices, mapped)
    elif types.is_string(kind) or types.is_binary(kind):
        yield from _variable(array, array.buffers()[2], 1, 0, OFFSETS_32, mapped)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        yield from _variable(array, array.buffers()[2], 1, 0, OFFSETS_64, mapped)
    elif types.is_list(kind) or types.is_large_list(kind):
        values, width = array.values, _width(array.type.value_type)
        if width:
            offsets = OFFSETS_32 if types.is_list(kind) else OFFSETS_64
            data = values.buffers()[1]
            yield from _variable(array, data, width, values.offset, offsets, mapped)
    elif types.is_fixed_size_list(kind):
        values, width = array.values, _width(array.type.value_type)
        first = values.offset + array.offset * kind.list_size
        yield from _fixed(values.buffers()[1], width * kind.list_size, first * width, mapped)
    elif width := _width(kind):
        yield from _fixed(array.buffers()[1], width, array.offset * width, mapped)


def _width(kind: Any) -> int:
    """Return the bytes of a value of fixed width; 0: the width varies, or is less than a byte."""
    try:
        return int(kind.bit_width) // 8
    except ValueError:
        return 0


def _fixed(data: Any, width: int, first: int, mapped: Mapped) -> Iterator[_Column]:
    place = mapped.place(data.address, data.size) if data is not None and width else None
    if place is not None:
        yield _Column(place[0], BYTES, 1, 0, 0, place[1] + first, width)


def _variable(
    array: Any, data: Any, width: int, first: int, kind: int, mapped: Mapped
) -> Iterator[_Column]:
    offsets = array.buffers()[1]
    if offsets is None or data is None or not data.size:
        return
    place, of_offsets = (mapped.place(part.address, part.size) for part in (data, offsets))
    if place is None or of_offsets is None or place[0] != of_offsets[0]:
        return
    size = 4 if kind == OFFSETS_32 else 8
    at = of_offsets[1] + array.offset * size
    skipped = first * width
    yield _Column(*(place[0], kind, width, place[1] + skipped, data.size - skipped, at), step=size)


# Records of equal size


def records(dataset: Any, mapped: Mapped) -> Rows | None:
    """Return where the samples of a data set with mapped arrays are expected; None: nowhere.

    Expected, not known: a row for each sample, or a part of equal length, or a window that begins
    at the number of the sample.
    """
    n_samples = len(dataset)
    attributes = list(getattr(dataset, "__dict__", {}).values())
    sizes = [value for value in attributes if type(value) is int]
    columns = [
        column
        for value in attributes
        if (array := _array(value, mapped)) is not None
        and (column := _records_of(array, n_samples, sizes)) is not None
    ]
    if not columns:
        return None
    return lambda number: [record.row(number) for record in columns]


class _Array(NamedTuple):
    """A mapped array of rows of `width` bytes."""

    path: str
    offset: int
    n: int
    width: int


def _array(value: Any, mapped: Mapped) -> _Array | None:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray):
        is_whole, n_bytes = value.flags.c_contiguous, value.nbytes
        address = value.__array_interface__["data"][0]
    elif torch is not None and isinstance(value, torch.Tensor):
        is_whole = value.is_cpu and value.layout == torch.strided and value.is_contiguous()
        n_bytes = value.numel() * value.element_size()
        address = value.data_ptr() if is_whole else 0
    else:
        return None
    if not is_whole or n_bytes < LEAST_BYTES or not value.shape:
        return None
    place = mapped.place(address, n_bytes)
    return None if place is None else _Array(*place, len(value), n_bytes // len(value))


class _Records(NamedTuple):
    """Records of `bytes` bytes, `step` bytes apart, up to `end`."""

    path: str
    offset: int
    end: int
    step: int
    bytes: int

    def row(self, number: int) -> Range:
        at = self.offset + number * self.step
        return Range(self.path, BYTES, 1, at, min(self.bytes, self.end - at), 0)


def _records_of(array: _Array, n_samples: int, sizes: Sequence[int]) -> _Records | None:
    path, offset, n, width = array
    end = offset + n * width
    if n == n_samples:
        return _Records(path, offset, end, width, width)
    window = (n - n_samples + 1) * width
    if n_samples > n // 2:
        fits = n_samples < n and window <= MOST_WINDOW_BYTES
        return _Records(path, offset, end, width, window) if fits else None
    block = _block(n, n_samples, sizes)
    if block is None:
        return None
    # with the item that follows: a language model's targets
    return _Records(path, offset, end, block * width, (block + 1) * width)


def _block(n: int, n_samples: int, sizes: Sequence[int]) -> int | None:
    """Return the length of each of n_samples parts of n items; None: not known.

    A language model's last item may be left out: it follows the last part.
    """
    candidates = range(n // (n_samples + 1), n // n_samples + 1) if n_samples else ()
    possible = [
        block for block in candidates if block and n_samples in (n // block, (n - 1) // block)
    ]
    chosen = [size for size in sizes if size in possible] or possible
    return chosen[0] if len(set(chosen)) == 1 else None
