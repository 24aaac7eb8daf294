"""Measure the speed of reading a data set here: by Feed, by py-lmdb, and by large reads alone.

Knows the reader and the tiers.  Each row is a reader with a time, after an eviction of the reader's
files; files left in memory are reported.
"""

from __future__ import annotations

import html
import random
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import FeedError, FeedRefused, MissingDependency, TierError
from penstock.feed import Feed, Index, pages, plan
from penstock.feed.feed import Stand, epoch_of
from penstock.feed.state import BUFFER_BYTES
from penstock.places import tiers
from penstock.places.tiers import Ceiling
from penstock.words import show

__all__ = ["Benched", "ReaderRate", "measure", "page_of", "to_json"]

Progress = Callable[[int, int], None]
Given = Generator[tuple[int, int]]  # records and bytes of each batch

EVICTED_FILES = 5000  # of a folder: each eviction is a call, and only the first files are read
SEED = 1
READERS = 2  # Feed's own default: two portions arrive together

# A Feed starts (threads, an order, a ring) in 2 to 5 ms, a tenth of LEAST_WHOLE_S; a whole reading
# in less time gets no ratio.
MEASURABLE_S = 0.05
WANTED_S = 4 * MEASURABLE_S
WANTED_BPS = 1e9  # least speed for the suggested size: a small set shows less about storage
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>body {{ font-family: sans-serif }} p {{ color: #808890; margin: 0.5em 5em }}</style>
</head>
<body>{body}</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class ReaderRate:
    """The rate of a reader over `seconds`: of the whole set from the beginning (is_whole), or after
    the reader's first read-ahead.

    order: none, block, global.  bandwidth_bps: of records.  device_bytes: fetched from a device by
    the process's reads; None: not reported.  is_cold, why_not_cold: of the files before the start.
    """

    reader: str
    order: str
    is_cold: bool
    why_not_cold: str
    n_records: int
    record_bytes: int
    device_bytes: int | None
    seconds: float
    is_whole: bool

    @property
    def is_measured(self) -> bool:
        """Return True if the time is long enough the reader's start is a small part."""
        return not self.is_whole or self.seconds >= MEASURABLE_S

    @property
    def records_hz(self) -> float:
        return self.n_records / self.seconds

    @property
    def bandwidth_bps(self) -> float:
        return self.record_bytes / self.seconds

    @property
    def amplification(self) -> float | None:
        """Return device bytes per byte of a record; None: not reported, or too few bytes."""
        if self.device_bytes is None or not self.record_bytes or not self.is_measured:
            return None
        return self.device_bytes / self.record_bytes


@dataclass(frozen=True, slots=True)
class Benched:
    """Rates beside the ceiling: the best of `ceilings`, None without a large enough file.

    batch_size: records per batch, as Feed read them.  missing: measurements not made as requested,
    with the reason.
    """

    path: str
    kind: str
    n_records: int
    record_bytes: int
    batch_size: int
    ceilings: tuple[Ceiling, ...]
    rates: tuple[ReaderRate, ...]
    missing: tuple[str, ...]

    @property
    def ceiling_bps(self) -> float | None:
        return max((each.bandwidth_bps for each in self.ceilings), default=None)

    def share(self, rate: ReaderRate) -> float | None:
        """Return the share of the ceiling; None: no ceiling, or the rate is no measurement."""
        ceiling = self.ceiling_bps
        return rate.bandwidth_bps / ceiling if ceiling and rate.is_measured else None


def measure(
    index: Index,
    seconds: float = 3.0,
    batch_size: int = 64,
    progress: Progress | None = None,
    database: str | None = None,
) -> Benched:
    """Read for `seconds` with each reader, or until the rate is known.

    batch_size: reduced if the batches do not fit a Feed's buffer.  database: of the LMDB the index
    is of.  Raises FeedError: the data set cannot be read.
    """
    if not len(index):
        raise FeedError(f"{index.path}: holds no record, so there is nothing to measure")
    if index.kind == "parquet":
        raise FeedRefused(
            f"{index.path} is Parquet: rows are decoded, so their rate is not one of storage; time "
            "a loop over RowFeed"
        )
    missing: list[str] = []
    asked, (batch_size, buffer_bytes) = batch_size, _fitting(index, batch_size)
    if batch_size < asked:
        missing.append(
            f"batches are of {batch_size:,} records: {asked:,} of the largest do not fit the "
            f"memory that a Feed takes by default, {BUFFER_BYTES >> 20} MiB"
        )
    works: list[tuple[str, str, Callable[[], Given]]] = [
        ("penstock.feed", order, partial(_by_feed, index, order, batch_size, buffer_bytes))
        for order in ("none", "block", "global")
    ]
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
        each_s = seconds / 3
        measured = tiers.read_ceiling(index.files[:EVICTED_FILES], seconds_each=each_s)
        # A measurement shorter than planned ended with the files; the fastest end first, so the
        # others give no ceiling.
        if all(each.seconds >= min(MEASURABLE_S, 0.8 * each_s) for each in measured):
            ceilings = measured
    except TierError as error:
        missing.append(f"no ceiling: {error}")
    missing += _too_small(rates, ceilings)
    return Benched(
        path=index.path,
        kind=index.kind,
        n_records=len(index),
        record_bytes=index.total_bytes,
        batch_size=batch_size,
        ceilings=tuple(ceilings),
        rates=tuple(rates),
        missing=tuple(missing),
    )


def _too_small(rates: list[ReaderRate], ceilings: list[Ceiling]) -> list[str]:
    """Return a sentence if the set is too small, else no sentence."""
    short = [rate for rate in rates if not rate.is_measured]
    if not short and ceilings:
        return []
    rates_bps = [rate.bandwidth_bps for rate in rates] + [each.bandwidth_bps for each in ceilings]
    wanted = WANTED_S * max(WANTED_BPS, *rates_bps)
    most_s = max((rate.seconds for rate in short or rates), default=0.0)
    what = "no ratio" if ceilings else "no ceiling and no ratio"
    return [
        f"too small to measure: read as a whole within {show(most_s, 's')}, of which a reader's "
        f"start is a good part, it gives {what}; a set of {show(wanted, 'B')} or more does"
    ]


def _fitting(index: Index, batch_size: int) -> tuple[int, int]:
    """Return (batch_size, buffer_bytes) so any batch fits a portion of a Feed."""
    slots = READERS + 1
    needs = np.sort(index.length)[::-1][:batch_size] + 2 * plan.PAGE_BYTES
    upto = np.cumsum(needs)
    while batch_size > 1 and int(upto[min(batch_size, len(upto)) - 1]) * slots > BUFFER_BYTES:
        batch_size //= 2
    return batch_size, max(BUFFER_BYTES, slots * int(needs[0] + plan.PAGE_BYTES))


def _rate(
    index: Index, reader: str, order: str, work: Callable[[], Given], seconds: float
) -> ReaderRate:
    """Measure the rate of a reader over the whole epoch, if short enough.

    For a longer epoch: measure between two moments when the reader's first read-ahead has just been
    given out.  At both moments the number of bytes read but not given out is then equal.  At any
    other moment the error would be as large as the bytes read by slow storage (10 MB/s) in seconds.
    """
    files = index.files[:EVICTED_FILES]
    for path in files:
        tiers.evict(path, is_synced=True)
    warmth = tiers.warmth_of(files)
    n_records = n_bytes = 0
    is_all = True
    with closing(work()) as given:
        begun = since = (0, 0, _device_bytes(), time.perf_counter())
        for number, (more, more_bytes) in enumerate(given, 1):
            n_records, n_bytes = n_records + more, n_bytes + more_bytes
            if number % READERS:
                continue
            now = time.perf_counter()
            if since is begun:
                since = (n_records, n_bytes, _device_bytes(), now)
            elif now - begun[-1] > seconds:
                is_all = False
                break
        end = (n_records, n_bytes, _device_bytes(), time.perf_counter())
    since = begun if is_all else since
    device = None if end[2] is None or since[2] is None else end[2] - since[2]
    if warmth.is_cold and n_bytes and end[2] == begun[2]:
        device = None  # FUSE and network file systems: fetched, and counted as nobody's
    return ReaderRate(
        reader=reader,
        order=order,
        is_cold=warmth.is_cold,
        why_not_cold=warmth.why_not_cold,
        n_records=end[0] - since[0],
        record_bytes=end[1] - since[1],
        device_bytes=device,
        seconds=end[3] - since[3],
        is_whole=is_all,
    )


def _device_bytes() -> int | None:
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    return int(text.partition("\nread_bytes:")[2].split()[0])


def _by_feed(index: Index, order: str, batch_size: int, buffer_bytes: int) -> Given:
    """Yield portion after portion: bytes read together are given together."""
    feed = Feed(index, batch_size, shuffle=order, seed=SEED, buffer_bytes=buffer_bytes)
    edges = set(epoch_of(index, feed.request, Stand()).edges.tolist())
    return _portions(feed, edges)


def _portions(feed: Feed, edges: set[int]) -> Given:
    n_records = n_bytes = 0
    with feed:
        for number, batch in enumerate(feed, 1):
            n_records += len(batch)
            n_bytes += sum(map(len, batch.views()))
            if number in edges:
                yield n_records, n_bytes
                n_records = n_bytes = 0


def _lmdb_works(index: Index, database: str | None) -> list[tuple[str, str, Callable[[], Given]]]:
    """Return readings by py-lmdb in the way of data sets.  Raises MissingDependency, FeedError."""
    if index.kind != "lmdb" or len(index.files) != 1:
        return []
    try:
        import lmdb
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "py-lmdb is not installed, so nothing is compared with it: pip install lmdb"
        ) from error

    name = pages.name_in(index.files[0], database.encode() if database else None)

    def by_lmdb(is_ahead: bool) -> Given:
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
                yield 1, len(value)

    return [
        ("py-lmdb readahead=False", "global", partial(by_lmdb, False)),
        ("py-lmdb", "global", partial(by_lmdb, True)),
    ]


def to_json(benched: Benched) -> dict[str, Any]:
    """Return all measurements with the numbers computed from the measurements."""
    content = asdict(benched) | {"ceiling_bps": benched.ceiling_bps}
    for row, rate in zip(content["rates"], benched.rates, strict=True):
        row |= {
            "records_hz": rate.records_hz,
            "bandwidth_bps": rate.bandwidth_bps,
            "amplification": rate.amplification,
            "ceiling_share": benched.share(rate),
            "is_measured": rate.is_measured,
        }
    return content


def page_of(benched: Benched) -> str:
    """Return a page with a bar for each reader and a line for the ceiling.  Raises
    MissingDependency."""
    try:
        import plotly.graph_objects as drawing
    except ModuleNotFoundError as error:
        raise MissingDependency("a plot needs an extra: pip install 'penstock[html]'") from error
    names = [f"{rate.reader}<br>{rate.order}" for rate in benched.rates]
    values = [rate.bandwidth_bps / 1e6 for rate in benched.rates]
    labels = [
        f"{rate.records_hz:,.0f} records/s"
        + ("" if rate.is_measured else f"<br>too short: {show(rate.seconds, 's')}")
        for rate in benched.rates
    ]
    weight = {"opacity": [1 if rate.is_measured else 0.35 for rate in benched.rates]}
    bars = drawing.Bar(x=names, y=values, text=labels, textposition="outside", marker=weight)
    figure = drawing.Figure(bars)
    if benched.ceiling_bps:
        figure.add_hline(
            benched.ceiling_bps / 1e6,
            line_dash="dash",
            line_color="#808890",
            annotation_text="ceiling",
        )
    title = html.escape(f"{Path(benched.path).name}: MB/s of records")
    # Colours of letters and lines for light and dark pages; the page's own background shows.
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
    notes = "".join(f"<p>{html.escape(each)}</p>" for each in benched.missing)
    return PAGE.format(title=title, body=body + notes)
