"""`bench data all`: every data set of published sizes as files, and a set of each content in every
container, made, counted again from the files, removed.

Knows how to walk containers for their records' sizes; `data` makes the containers.  Nothing is
taken from the plan: a set is the content that other programs find in the folder.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import MissingDependency, TierError
from penstock.feed import open_index
from penstock_lab import data, study
from penstock_lab.data import FORMS, KINDS, RAW_BYTES, SUFFIX
from penstock_lab.folders import work_in
from penstock_lab.study import Case, Measure, PhaseProgress, Row, Study, StudyResult

__all__ = ["STUDY", "SetsSettings", "largest_bytes", "measured", "sizes_in"]

OTHERS_SHARE = 0.1  # of a folder's limit: other containers hold equal records
LEAST_RECORDS = 100  # fewer have no median to speak of
QUANTILES = 101  # of the sizes, for the picture


@dataclass(frozen=True, slots=True)
class SetsSettings:
    """most_bytes: of a set; a larger set is made of fewer records of equal sizes."""

    most_bytes: int = 2_200_000_000
    scale: float = 1.0
    seed: int = 1


STUDY = Study(
    "data",
    "Data sets of published sizes",
    ("kind", "form", "content"),
    (
        Measure("records", "records", "count"),
        Measure("of_published", "of the published number", "share"),
        Measure("payload_bytes", "in them", "B"),
        Measure("median_bytes", "median", "B"),
        Measure("published_median_bytes", "published", "B"),
        Measure("median_off", "off by", "share"),
        Measure("total_off", "sum off by", "share"),
        Measure("count_off", "number off by", "share"),
        Measure("seconds", "made in", "s"),
    ),
)


# The content of a container does not depend on the owner of the sizes.
IN_EVERY_FORM = ("caltech101", "malware", "cifar10")
RAW = "imagenet"


def _cases() -> list[Case]:
    contents = {name: kind.content for name, kind in KINDS.items()}
    wanted = [(name, form, contents[name]) for form in FORMS for name in KINDS
              if form == "folder" or name in IN_EVERY_FORM]  # fmt: skip
    wanted += [(RAW, form, "raw") for form in FORMS]
    return [{"kind": kind, "form": form, "content": content} for kind, form, content in wanted]


def _share(case: Case, settings: SetsSettings) -> float:
    """Of the published number of records, as many as have room."""
    kind = KINDS[case["kind"]]
    part = kind.total_bytes / kind.n if kind.total_bytes else 1.15 * kind.median_bytes
    each = RAW_BYTES if case["content"] == "raw" else part
    most = settings.most_bytes * (1 if case["form"] == "folder" else OTHERS_SHARE)
    n = min(kind.n * settings.scale, max(LEAST_RECORDS, most / each))
    return min(1.0, n / kind.n)


def _plan(case: Case, settings: SetsSettings) -> data.DataPlan:
    share, is_raw = _share(case, settings), case["content"] == "raw"
    return data.plan(case["kind"], case["form"], share, settings.seed, is_raw)


def largest_bytes(settings: SetsSettings) -> int:
    """Return the most room of `measured` at once: sets are made and removed one after the other."""
    return max(_plan(case, settings).disk_bytes for case in _cases())


def measured(
    folder: Path, settings: SetsSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Measure the sets; a set with a missing library is skipped, with a remark.

    Raises TierError: no room, FOLDER holds other settings.
    """
    cases = _cases()
    mark = {
        "study": "data", "most_bytes": settings.most_bytes, "share": settings.scale,
        "seed": settings.seed,
    }  # fmt: skip
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    rows_by_name = {_name(row): row for row in kept.rows}
    remarks = []
    for number, case in enumerate(cases):
        if _name(case) in rows_by_name:
            continue
        if progress:
            progress(f"{case['kind']} as {case['form']}", number / len(cases))
        try:
            with work_in(folder) as work:
                row = case | {"repeat": 0} | _measured(work / "set", _plan(case, settings), case)
        except MissingDependency as error:
            remarks.append(f"{case['kind']} as {case['form']}: left out: {error}")
            continue
        kept.add(row)
        rows_by_name[_name(case)] = row
    rows = [rows_by_name[_name(case)] for case in cases if _name(case) in rows_by_name]
    points = study.points_of(STUDY, rows, cases)
    remarks.append(
        "counted from the files that were made, by py-lmdb, tarfile and the TFRecord's own frames; "
        "pictures are made for the first set that needs them"
    )
    which = replace(STUDY, draw=lambda figure, points: _drawn(figure, rows))
    return StudyResult(which, f"{settings.scale:g}", mark, machine, points, rows, remarks, {})


def _name(row: Case) -> tuple[str, ...]:
    return tuple(str(row.get(key)) for key in STUDY.factors)


def _measured(place: Path, planned: data.DataPlan, case: Case) -> Row:
    begun = time.perf_counter()
    data.make(planned, place)
    seconds = time.perf_counter() - begun
    sizes = sizes_in(place, case["form"], case["content"])
    kind, wanted = planned.kind, round(planned.kind.n * planned.scale)
    middle, total = median(sizes), sum(sizes)
    published = kind.total_bytes * len(sizes) / kind.n if kind.total_bytes else None
    ordered = sorted(sizes)
    return {
        "records": len(sizes),
        "of_published": len(sizes) / kind.n,
        "payload_bytes": total,
        "median_bytes": middle,
        "published_median_bytes": kind.median_bytes,
        "median_off": middle / kind.median_bytes - 1,
        "total_off": total / published - 1 if published else None,
        "count_off": len(sizes) / wanted - 1,
        "seconds": seconds,
        "quantiles": [
            ordered[round(number * (len(ordered) - 1) / (QUANTILES - 1))]
            for number in range(QUANTILES)
        ],
    }


# --- the content of a folder ----------------------------------------------------------------------


def sizes_in(folder: Path, form: str, content: str) -> list[int]:
    """Return the bytes of each record, from the files.  Raises TierError: not readable in the
    form."""
    try:
        return list(_WALKS[form](folder, content))
    except (OSError, ValueError, IndexError, tarfile.TarError) as error:
        raise TierError(f"{folder}: cannot be read as {form}: {error}") from error


def _in_folder(folder: Path, content: str) -> Iterator[int]:
    for path in folder.rglob(f"*.{SUFFIX[content]}"):
        size = path.stat().st_size
        # CIFAR-10's batches: a label and 32 x 32 x 3 bytes, again and again.
        yield from [3073] * (size // 3073) if content == "pixels" else [size]


def _in_lmdb(folder: Path, content: str) -> Iterator[int]:
    import lmdb  # lmdb wrote the file

    with (
        closing(lmdb.open(str(folder), readonly=True, lock=False)) as database,
        database.begin(buffers=True) as transaction,
    ):
        for _, value in transaction.cursor():
            yield len(value)


def _in_tar(folder: Path, content: str) -> Iterator[int]:
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            yield from (m.size for m in archive if m.name.endswith(f".{SUFFIX[content]}"))


def _in_tfrecord(folder: Path, content: str) -> Iterator[int]:
    """The bytes of image/encoded in each tf.train.Example."""
    index = open_index(f"{folder}/*.tfrecord", cache=False)
    for number in range(len(index)):
        with open(index.files[int(index.file[number])], "rb") as file:
            file.seek(int(index.offset[number]))
            yield _encoded_bytes(file.read(int(index.length[number])))


def _encoded_bytes(example: bytes) -> int:
    for features in _fields(example):
        for entry in _fields(features):
            parts = list(_fields(entry))
            if parts[0] == b"image/encoded":
                return len(next(_fields(next(_fields(parts[1])))))
    raise ValueError("an example without image/encoded")


def _fields(message: bytes) -> Iterator[bytes]:
    """Yield the length-delimited fields of a protobuf message; our messages have no others."""
    at = 0
    while at < len(message):
        if message[at] & 7 != 2:
            raise ValueError("a field that has no length")
        size, at = _varint(message, at + 1)
        yield message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at


_WALKS: dict[str, Callable[[Path, str], Iterator[int]]] = {
    "folder": _in_folder,
    "lmdb": _in_lmdb,
    "tar": _in_tar,
    "tfrecord": _in_tfrecord,
}


def _drawn(figure: Any, rows: Sequence[Row]) -> None:
    """Draw each kind's sizes as found, and the published median."""
    figure.set_size_inches(8, 4.5)
    axis = figure.subplots()
    mine = [row for row in rows if row["form"] == "folder" and row["content"] != "raw"]
    for number, row in enumerate(mine):
        shares = [100 * n / (QUANTILES - 1) for n in range(QUANTILES)]
        # Two kinds can have equal sizes: the lower line shows between dashes.
        axis.plot(row["quantiles"], shares, "--" if number % 2 else "-", color=f"C{number}",
                  label=row["kind"])  # fmt: skip
        axis.plot([row["published_median_bytes"]], [50], "x", color=f"C{number}")
    axis.plot([], [], "kx", label="published median")
    axis.set(xlabel="size of a record", ylabel="% of the records are smaller")
    study.logarithmic(axis.xaxis, "B")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()
