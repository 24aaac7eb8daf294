"""How fast a data set can be read here: by Feed, by py-lmdb, and by nothing but large reads.

Knows the reader and the tiers.  Each row is a reader with a time limit, its files evicted before;
what was in memory all the same is said.
"""

from __future__ import annotations

import html
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock import tiers
from penstock.errors import FeedError, MissingDependency, TierError
from penstock.feed import Feed, Index, pages
from penstock.tiers import Ceiling

__all__ = ["Benched", "Rate", "measure", "page_of", "to_json"]

Progress = Callable[[int, int], None]

EVICTED_FILES = 5000  # of a folder of images: evicting each is a call, and the first ones are read
SEED = 1


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
</head>
<body>{body}</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one reader gave.  order: none, block, global.  bandwidth_bps: of records.
    device_bytes: that the process' reads fetched from a device, None: not told; is_cold and
    why_not_cold: of the files before it began."""

    reader: str
    order: str
    is_cold: bool
    why_not_cold: str
    n_records: int
    record_bytes: int
    device_bytes: int | None
    seconds: float

    @property
    def records_hz(self) -> float:
        return self.n_records / self.seconds

    @property
    def bandwidth_bps(self) -> float:
        return self.record_bytes / self.seconds

    @property
    def amplification(self) -> float | None:
        """Bytes from the device for each byte of a record."""
        if self.device_bytes is None or not self.record_bytes:
            return None
        return self.device_bytes / self.record_bytes


@dataclass(frozen=True, slots=True)
class Benched:
    """Rates beside the ceiling: the best of `ceilings`, None where nothing large enough is there.
    missing: what was not measured, and why."""

    path: str
    kind: str
    n_records: int
    record_bytes: int
    ceilings: tuple[Ceiling, ...]
    rates: tuple[Rate, ...]
    missing: tuple[str, ...]

    @property
    def ceiling_bps(self) -> float | None:
        return max((each.bandwidth_bps for each in self.ceilings), default=None)


def measure(
    index: Index,
    seconds: float = 3.0,
    batch_size: int = 64,
    progress: Progress | None = None,
    database: str | None = None,
) -> Benched:
    """Reads for at most `seconds` with each reader.  database: of the LMDB, that the index is of.

    Raises FeedError: it cannot be read."""
    works: list[tuple[str, str, Callable[[], Iterator[int]]]] = [
        ("penstock.feed", order, partial(_by_feed, index, order, batch_size))
        for order in ("none", "block", "global")
    ]
    missing: list[str] = []
    try:
        works += _lmdb_works(index, database)
    except MissingDependency as error:
        missing.append(str(error))
    rates = []
    for number, (reader, order, work) in enumerate(works):
        if progress is not None:
            progress(number, len(works) + 1)
        rates.append(_rate(index, reader, order, work, seconds))
    if progress is not None:
        progress(len(works), len(works) + 1)
    ceilings: list[Ceiling] = []
    try:
        ceilings = tiers.read_ceiling(index.files[:EVICTED_FILES], seconds_each=seconds / 3)
    except TierError as error:
        missing.append(f"no ceiling: {error}")
    return Benched(
        path=index.path,
        kind=index.kind,
        n_records=len(index),
        record_bytes=index.total_bytes,
        ceilings=tuple(ceilings),
        rates=tuple(rates),
        missing=tuple(missing),
    )


def _rate(
    index: Index, reader: str, order: str, work: Callable[[], Iterator[int]], seconds: float
) -> Rate:
    files = index.files[:EVICTED_FILES]
    for path in files:
        tiers.evict(path, is_synced=True)
    warmth = tiers.warmth_of(files)
    before, n_records, n_bytes = _device_bytes(), 0, 0
    begun = time.perf_counter()
    for record_bytes in work():
        n_records += 1
        n_bytes += record_bytes
        if time.perf_counter() - begun > seconds:
            break
    took = time.perf_counter() - begun
    after = _device_bytes()
    device = None if before is None or after is None else after - before
    return Rate(
        reader, order, warmth.is_cold, warmth.why_not_cold, n_records, n_bytes, device, took
    )


def _device_bytes() -> int | None:
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    return int(text.partition("\nread_bytes:")[2].split()[0])


def _by_feed(index: Index, order: str, batch_size: int) -> Iterator[int]:
    with Feed(index, batch_size, shuffle=order, seed=SEED) as feed:
        for batch in feed:
            yield from map(len, batch.views())


def _lmdb_works(
    index: Index, database: str | None
) -> list[tuple[str, str, Callable[[], Iterator[int]]]]:
    """py-lmdb as data sets use it.  Raises MissingDependency, FeedError."""
    if index.kind != "lmdb" or len(index.files) != 1:
        return []
    try:
        import lmdb
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "py-lmdb is not installed, so nothing is compared with it: pip install lmdb"
        ) from error

    name = pages.name_in(index.files[0], database.encode() if database else None)

    def by_lmdb(is_ahead: bool) -> Iterator[int]:
        keys = list(range(len(index)))
        random.Random(SEED).shuffle(keys)
        try:
            env = lmdb.open(
                index.files[0],
                subdir=False,
                readonly=True,
                lock=False,
                readahead=is_ahead,
                max_dbs=1,
            )
        except lmdb.Error as error:
            raise FeedError(f"{index.files[0]}: py-lmdb cannot open it: {error}") from error
        with env, env.begin(db=env.open_db(name)) as txn:
            for key in keys:
                value = txn.get(index.key(key))
                if value is None:
                    raise FeedError(f"{index.path}: py-lmdb has no {index.key(key)!r}")
                yield len(value)

    return [
        ("py-lmdb readahead=False", "global", partial(by_lmdb, False)),
        ("py-lmdb", "global", partial(by_lmdb, True)),
    ]


def to_json(benched: Benched) -> dict[str, Any]:
    """All of it, with what is computed from it."""
    told = asdict(benched) | {"ceiling_bps": benched.ceiling_bps}
    for row, rate in zip(told["rates"], benched.rates, strict=True):
        row |= {
            "records_hz": rate.records_hz,
            "bandwidth_bps": rate.bandwidth_bps,
            "amplification": rate.amplification,
        }
    return told


def page_of(benched: Benched) -> str:
    """A page with a bar for each reader and a line for the ceiling.  Raises MissingDependency."""
    try:
        import plotly.graph_objects as drawing
    except ModuleNotFoundError as error:
        raise MissingDependency("a plot needs an extra: pip install 'penstock[html]'") from error
    names = [f"{rate.reader}<br>{rate.order}" for rate in benched.rates]
    values = [rate.bandwidth_bps / 1e6 for rate in benched.rates]
    told = [f"{rate.records_hz:,.0f} records/s" for rate in benched.rates]
    figure = drawing.Figure(drawing.Bar(x=names, y=values, text=told))
    if benched.ceiling_bps:
        figure.add_hline(benched.ceiling_bps / 1e6, line_dash="dash", annotation_text="ceiling")
    title = html.escape(f"{Path(benched.path).name}: MB/s of records")
    # Letters and lines that both a light and a dark page can carry; the page's own ground shows.
    grid = {"gridcolor": "rgba(128, 128, 128, 0.3)"}
    figure.update_layout(
        title=title,
        yaxis={"title": "MB/s", **grid},
        xaxis=grid,
        font={"color": "#808890"},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
    )
    body = figure.to_html(full_html=False, include_plotlyjs=True)
    return PAGE.format(title=title, body=body)
