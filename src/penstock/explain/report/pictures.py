"""The pictures of a Report, with words: bins over time, by size, by lane, by rank."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from penstock.explain.measures import HistogramBin, Lane, Measures
from penstock.explain.report.shape import REQUEST_TIMES, Mark, Picture, Series, Unit
from penstock.words import count, show

__all__ = ["pictures_of"]


def pictures_of(measures: Measures) -> tuple[Picture, ...]:
    pictures = (
        _step_picture(measures),
        _bandwidth_picture(measures),
        *_lane_pictures(measures),
        _rank_picture(measures),
        *_host_pictures(measures),
        _histogram(measures, "request_sizes", "Request sizes", "B", "call", measures.request_sizes),
        _histogram(measures, "latencies", "Latencies", "s", "call", measures.latencies, -9),
        _histogram(measures, "file_sizes", "File sizes", "B", "file", measures.file_sizes),
        _request_picture(measures),
    )
    return tuple(picture for picture in pictures if picture is not None)


def _unsure_of_steps(measures: Measures) -> tuple[float, ...]:
    """Return by point the seconds of a step that may be data wait.

    The run's share is spread over steps without a loader.
    """
    points = measures.step_times
    if not measures.unsure:
        return (0.0,) * len(points)
    unfed_s = sum(point.unfed_s * point.steps for point in points)
    unsure_s = measures.unsure_share * (measures.training.wall_s or 0.0) * measures.training.mains
    share = min(1.0, unsure_s / unfed_s) if unfed_s else 0.0
    return tuple(point.unfed_s * share for point in points)


def _step_picture(measures: Measures) -> Picture | None:
    points = measures.step_times
    if not points:
        return None
    slowest = max(points, key=lambda point: point.max_step_s)
    mean_s = sum(point.step_s * point.steps for point in points) / sum(
        point.steps for point in points
    )
    per = max(point.steps for point in points)
    unsure = _unsure_of_steps(measures)
    series = (
        Series(
            "compute",
            "compute",
            tuple(
                max(0.0, p.step_s - p.data_wait_s - p.checkpoint_s - unsure_s)
                for p, unsure_s in zip(points, unsure, strict=True)
            ),
        ),
        *([Series("unfed", "compute or data wait", unsure)] if measures.unsure else []),
        Series("data", "data wait", tuple(p.data_wait_s for p in points)),
        Series("checkpoint", "checkpoint", tuple(p.checkpoint_s for p in points)),
    )
    return Picture(
        "steps", "Step times", "stack", "step", "count", 1, per, "time", "s", series,
        f"A step took {show(mean_s, 's')} on average; the longest, "
        f"{show(slowest.max_step_s, 's')}, is near step {slowest.first_step:,}."
        + (f" Each bar is the mean of {per} steps." if per > 1 else ""),
        "measured", "",
        at_s=(*(point.start_s for point in points), points[-1].end_s),
    )  # fmt: skip


def _bandwidth_picture(measures: Measures) -> Picture | None:
    bins = measures.bandwidth
    if not bins:
        return None
    bin_s = bins[0].bin_s
    n_bins = _n_bins(measures, bin_s)
    values: dict[tuple[str, str, str], list[float | None]] = {}
    for row in bins:
        key = (row.op_group, row.path_class, row.layer)
        values.setdefault(key, _unpaused(measures, n_bins, bin_s))[row.bin] = (
            row.moved_bytes / bin_s
        )
    most = max(sum(v or 0 for v in column) for column in values.values())
    series, words = [], []
    for (group, path_class, layer), column in sorted(values.items()):
        total = sum(v or 0 for v in column)
        # A hundredth of the largest value would be a line on the axis.
        if total < 0.01 * most:
            continue
        label = f"{group} {path_class}" + ("" if layer == "posix" else f" ({layer.upper()})")
        series.append(Series(f"{group} {path_class} {layer}", label, tuple(column)))
        peak = max(v or 0 for v in column)
        at_most = f"{show(peak, 'B/s')} in {show(bin_s, 's')}"
        words.append(f"{label}: {show(total * bin_s, 'B')}, at most {at_most}")
    state, why = measures.events_state
    return Picture(
        "bandwidth", "Bandwidth over time", "lines", "time since the run began", "s", 0.0, bin_s,
        "bandwidth", "B/s", tuple(series), "; ".join(words) + ".", state, why,
        marks=_ceilings(measures),
    )  # fmt: skip


def _n_bins(measures: Measures, bin_s: float) -> int:
    """Return the number of bins of `bin_s` up to the end of the last picture over time.

    All pictures over time share an axis.
    """
    ends_s = [(row.bin + 1) * row.bin_s for row in measures.bandwidth]
    ends_s += [(cell.bin + 1) * cell.bin_s for cell in measures.lane_cells]
    return math.ceil(round(max(ends_s) / bin_s, 6))


# Names of the host's samples, and the keys of their colours in views.
HOST_LINES = {
    "disk read_bytes": ("read disk", "read from disks"),
    "network received_bytes": ("read network", "received"),
    "disk written_bytes": ("write disk", "written to disks"),
    "network sent_bytes": ("write network", "sent"),
    "processors": ("compute processors", "CPUs busy"),
    "memory": ("heat memory", "memory in use"),
}


def _host_pictures(measures: Measures) -> tuple[Picture, ...]:
    """Return the host's activity by any program, sampled each second."""
    rows = measures.system_rates
    if not rows or not (measures.bandwidth or measures.lane_cells):
        return ()
    bin_s = rows[0].bin_s
    n_bins = _n_bins(measures, bin_s)
    pictures = []
    drawn: tuple[tuple[str, str, Unit], ...] = (
        ("system", "Devices and network of the host", "B/s"),
        ("host", "Processors, memory and accelerators of the host", "share"),
    )
    for key, title, unit in drawn:
        values: dict[str, list[float | None]] = {}
        for row in rows:
            if row.unit == unit and row.bin < n_bins:
                line = values.setdefault(row.what, [None] * n_bins)
                line[row.bin] = float(f"{row.value:.4g}")
        for level in LEVELS & values.keys():
            _carry_on(values[level])
        lines = [(*_host_line(what), tuple(line)) for what, line in values.items() if any(line)]
        series = tuple(Series(name, label, line) for name, label, line in sorted(lines))
        if not series:
            continue
        words = [
            f"{measured.label}: at most {show(max(v or 0 for v in measured.values), unit)}"
            for measured in series
        ]
        pictures.append(
            Picture(
                key=key,
                title=title,
                kind="lines",
                x_label="time since the run began",
                x_unit="s",
                x_start=0.0,
                x_step=bin_s,
                y_label="bandwidth" if unit == "B/s" else "share",
                y_unit=unit,
                series=series,
                words="Of all programs there, each second. " + "; ".join(words) + ".",
                state="measured",
                why="",
            )
        )
    return tuple(pictures)


# Samples that hold until the next sample; the other samples are rates.
LEVELS = {"memory"}


def _carry_on(values: list[float | None]) -> None:
    """Fill each bin without a sample with the value before; leave the bins before the first."""
    for place, value in enumerate(values[1:], 1):
        if value is None:
            values[place] = values[place - 1]


def _host_line(what: str) -> tuple[str, str]:
    return HOST_LINES.get(what, (f"data-cpu {what}", f"{what} busy"))


def _ceilings(measures: Measures) -> tuple[Mark, ...]:
    """Return the measured ceilings of the tiers with the most reads and writes."""
    marks = []
    for group, path_class in (("read", "data"), ("write", "output")):
        rows = [row for row in measures.storage if row.path_class == path_class]
        row = max(rows, key=attrgetter("read_bytes", "written_bytes"), default=None)
        ceiling_bps = getattr(row, f"{group}_ceiling_bps", None)
        if row and ceiling_bps:
            marks.append(
                Mark(f"{row.mount} gives at most {show(ceiling_bps, 'B/s')}", ceiling_bps, group)
            )
    return tuple(marks)


MOST_SHOWN = 4  # endpoints of queries/request_latencies.sql

# Attribute of LaneCell: key, title, meaning of the heat, unit, and the begin of the caption.
HEATS: dict[str, tuple[str, str, str, Unit, str]] = {
    "wait_s": ("lanes_wait", "Waited for, by lane", "time waited for", "s", "The step loop waited"),
    "call_s": ("lanes_time", "Time in file calls, by lane", "time in calls", "s", "In file calls:"),
    "moved_bytes": ("lanes_bytes", "Bytes moved, by lane", "bytes", "B", "Moved:"),
    "calls": ("lanes_calls", "File calls, by lane", "calls", "count", "File calls:"),
}


def _lane_pictures(measures: Measures) -> Iterator[Picture]:
    """Yield a picture for each heat, all with the same lanes and bins."""
    cells, lanes = measures.lane_cells, measures.lanes
    if not cells:
        return
    n_bins, labels = _n_bins(measures, cells[0].bin_s), _lane_labels(lanes)
    left_out = lanes[0].all_lanes - len(lanes)
    more = f" {count(left_out, 'lane')} with less time in calls are left out." if left_out else ""
    for name, (key, title, heat, unit, begins) in HEATS.items():
        rows: dict[int, list[float | None]] = {lane.lane: [None] * n_bins for lane in lanes}
        sums = dict.fromkeys(rows, 0.0)
        for cell in cells:
            value = getattr(cell, name)
            if value:
                # Four digits: more than a colour or a pointer can show.
                rows[cell.lane][cell.bin] = float(f"{value:.4g}")
                sums[cell.lane] += value
        most = max(sums, key=lambda lane: sums[lane])
        words = f"{begins} {show(sum(sums.values()), unit)}"
        if sums[most] and len(lanes) > 1:
            words += f", most of it for {labels[most]}: {show(sums[most], unit)}"
        series = tuple(Series(f"lane {n}", labels[n], tuple(row)) for n, row in rows.items())
        state, why = measures.events_state
        yield Picture(
            key, title, "lanes", "time since the run began", "s", 0.0, cells[0].bin_s, heat, unit,
            series, f"{words}.{more}", state, why,
        )  # fmt: skip


def _rank_picture(measures: Measures) -> Picture | None:
    """Return when each rank waited for data; a row holds several ranks of a large job."""
    cells = measures.rank_cells
    if not any(cell.wait_s for cell in cells):
        return None
    bin_s = cells[0].bin_s
    n_bins = max(cell.bin for cell in cells) + 1
    n_rows = max(cell.row for cell in cells) + 1
    labels, rows = {}, {row: [0.0] * n_bins for row in range(n_rows)}
    for cell in cells:
        is_one = cell.first == cell.last
        labels[cell.row] = f"rank {cell.first}" if is_one else f"ranks {cell.first}-{cell.last}"
        rows[cell.row][cell.bin] = float(f"{cell.wait_s:.4g}")
    waits = [row.data_wait_s for row in measures.ranks]
    mean_s, slow = sum(waits) / len(waits), max(measures.ranks, key=attrgetter("data_wait_s"))
    name = f"rank {slow.rank}" if slow.rank is not None else f"process {slow.process}"
    words = f"A mean of {show(mean_s, 's')} of data wait; most for {name}: " + show(
        slow.data_wait_s, "s"
    )
    if mean_s:
        words += f", {show(slow.data_wait_s / mean_s, 'x')} the mean"
    more = (
        " A row of several ranks shows the one that waits longest." if n_rows < len(waits) else ""
    )
    state, why = measures.spans_state
    return Picture(
        "rank_waits", "Data wait, by rank", "ranks", "time since the run began", "s", 0.0, bin_s,
        "time waited", "s",
        tuple(
            Series(f"heat {row}", labels[row], tuple(v or None for v in values))
            for row, values in rows.items()
        ),
        f"{words}.{more}", state, why,
    )  # fmt: skip


def _lane_labels(lanes: Sequence[Lane]) -> dict[int, str]:
    """Return a distinct label for each lane."""
    mains = {lane.process for lane in lanes if lane.role == "main"}
    labels = {}
    for lane in lanes:
        if lane.role == "worker":
            who = "worker" if lane.worker is None else f"worker {lane.worker}"
            who += f", loader {lane.loader}" * ((lane.loader or 1) > 1)
        else:
            who = "main" if lane.process in mains else f"process {lane.pid}"
        rank = "" if lane.rank is None else f"rank {lane.rank} "
        is_first = lane.is_main_thread or lane.role == "main"
        labels[lane.lane] = f"{rank}{who}" + (
            "" if is_first else f", {lane.name or f'thread {lane.nth}'}"
        )
    once = Counter(labels.values())
    for lane in lanes:
        if once[labels[lane.lane]] > 1:
            is_thread = not lane.is_main_thread and lane.tid is not None
            if lane.processes > 1:  # shared by several processes
                labels[lane.lane] += f" {lane.nth}"
            else:
                labels[lane.lane] += f" {lane.tid}" if is_thread else f" (pid {lane.pid})"
    return labels


def _unpaused(measures: Measures, n_bins: int, bin_s: float) -> list[float | None]:
    """Return a zero for each bin; None for a bin in a pause of every main process."""
    values: list[float | None] = [0.0] * n_bins
    processes = {pause.process for pause in measures.pauses}
    if not processes or len(processes) < measures.training.mains:
        return values
    for place in range(n_bins):
        begin_s, end_s = place * bin_s, (place + 1) * bin_s
        inside = {
            pause.process
            for pause in measures.pauses
            if pause.start_s <= begin_s and pause.end_s >= end_s
        }
        if inside == processes:
            values[place] = None
    return values


def _histogram(
    measures: Measures,
    key: str,
    title: str,
    unit: Unit,
    counted: str,
    bins: Sequence[HistogramBin],
    power: int = 0,
) -> Picture | None:
    """Return a histogram.  counted: the singular of the counted things.  power: of ten, from the
    bins' unit to unit."""
    if not bins:
        return None
    low, high = min(row.exponent for row in bins), max(row.exponent for row in bins)
    groups: dict[tuple[str, str], list[float | None]] = {}
    for row in bins:
        column = groups.setdefault((row.layer, row.op_group), [None] * (high - low + 1))
        column[row.exponent - low] = row.n
    state, why = measures.counts_state if key == "file_sizes" else measures.events_state
    series = tuple(
        Series(
            f"{group} {layer}".strip(),
            group + ("" if layer != "stdio" else " (STDIO)"),
            tuple(column),
        )
        for (layer, group), column in sorted(groups.items())
    )
    picture = Picture(
        key,
        title,
        "bars",
        title.lower(),
        unit,
        low,
        power,
        f"{counted}s",
        "count",
        series,
        "",
        state,
        why,
    )
    words = []
    for line in series:
        total, most = sum(v or 0 for v in line.values), max(v or 0 for v in line.values)
        at = line.values.index(most)
        words.append(
            f"{line.label}: {count(round(total), counted)}, "
            f"most often {picture.edge(at)} to {picture.edge(at + 1)}"
        )
    return replace(picture, words="; ".join(words) + ".")


def _request_picture(measures: Measures) -> Picture | None:
    """Return how long requests to each endpoint took, to the first byte and as a whole."""
    bins = measures.request_latencies
    if not bins:
        return None
    low, high = min(row.exponent for row in bins), max(row.exponent for row in bins)
    columns: dict[tuple[str, str], list[float | None]] = {}
    words = {}
    for row in bins:
        key = (row.endpoint, row.what)
        columns.setdefault(key, [None] * (high - low + 1))[row.exponent - low] = row.n
        words[key] = f"median {show(row.p50_s, 's')}, 99th percentile {show(row.p99_s, 's')}"
    series, captions = [], []
    for (endpoint, what), column in columns.items():
        series.append(
            Series(f"data-network {what} {endpoint}", f"{what}, {endpoint}", tuple(column))
        )
        total = count(round(sum(value or 0 for value in column)), "request")
        captions.append(f"{series[-1].label}: {total}, {words[endpoint, what]}")
    kept = sum(sum(value or 0 for value in line.values) for line in series if "whole" in line.key)
    every = sum(row.requests for row in measures.remote_requests)
    is_whole = kept >= every or len({row.endpoint for row in measures.remote_requests}) > MOST_SHOWN
    return Picture(
        REQUEST_TIMES, "Time of requests", "bars", "time", "s", low, -9, "requests", "count",
        tuple(series), "; ".join(captions) + ".",
        "measured" if is_whole else "incomplete",
        "" if is_whole else "requests past the first 50,000 of a process are sums",
    )  # fmt: skip
