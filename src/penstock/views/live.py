"""Show a running job as a changing panel, or as lines in the job's log.  Sees Live values only.

On a terminal a single panel, redrawn with each value; elsewhere a line per number of steps, so a
batch job's log stays readable.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from penstock.explain.live import NOT_FED, WINDOW_S, Blocked, Live, RemoteTraffic, Stall, Traffic
from penstock.safe.harmless import Shown
from penstock.views.paper import (
    LEVELS,
    Paper,
    bar,
    boxed,
    flowed,
    legend,
    paper_of,
    printed,
)
from penstock.words import count, show

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["line", "render", "show_on", "to_json"]

WORTH_TELLING = 0.01  # fraction of the wall time, as in verdict.py
BLOCKED_S = 10.0  # a call under way for so long is shown at once
MOST_ENDPOINTS = 3  # of remote storage, in the panel
QUIET_S = 60.0  # after so long without a step, a line reports the job's current work


def to_json(live: Live) -> str:
    """Return the value on one line of JSON.

    Each Stall has its shares: `stall`, lower and upper bound, and `storage`; null: not measured.
    """
    facts: dict[str, Any] = asdict(live)
    for name, stall in (("recent", live.recent), ("total", live.total)):
        facts[name] |= {"stall": stall.stall_between, "storage": stall.storage}
    return json.dumps(facts)


def show_on(lives: Iterable[Live], stream: TextIO | None = None, every: int = 100) -> Live | None:
    """Show each value on arrival; return the last.

    every: without a terminal, a line per `every` steps.  Raises MissingDependency without rich.
    """
    stream = Shown.through(sys.stdout if stream is None else stream)
    return _panels(lives, stream) if stream.isatty() else _lines(lives, stream, every)


def _panels(lives: Iterable[Live], stream: TextIO) -> Live | None:
    from rich.console import Console
    from rich.live import Live as Screen
    from rich.text import Text

    last = None
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    # Leaving the screen, also by an exception, puts the cursor back below the panel.
    with Screen(console=console, auto_refresh=False, transient=False) as screen:
        for last in lives:
            paper, color = paper_of(stream)
            screen.update(Text.from_ansi(_drawn(last, paper, color)), refresh=True)
    return last


def _lines(lives: Iterable[Live], stream: TextIO, every: int) -> Live | None:
    last = None
    told_steps, told_s, told_state, has_told_block = 0, -QUIET_S, "", False
    for last in lives:
        is_due = last.steps >= told_steps + every or last.elapsed_s >= told_s + QUIET_S
        is_blocked = any(call.s >= BLOCKED_S for call in last.blocked) or bool(last.still)
        if is_due or last.state != told_state or (is_blocked and not has_told_block):
            stream.write(line(last, has_stepped=last.steps > told_steps or not told_state) + "\n")
            stream.flush()
            told_steps, told_s, told_state = last.steps, last.elapsed_s, last.state
        has_told_block = is_blocked
    return last


def line(live: Live, has_stepped: bool = True) -> str:
    """Return a line: `io: stall 31 % (data 19, checkpoint 12), read 25 MB/s`.

    The shares are of the last minute; of the whole time once the run is over.  has_stepped: since
    the line before.
    """
    if live.state == "over":
        parts = [
            f"over after {show(live.elapsed_s, 's')}, {live.steps:,} steps",
            _stall(live.total),
        ]
        return f"io: {', '.join(parts + _slowest(live))}"
    if live.state != "running":
        return f"io: {_STATES[live.state]}"
    parts = []
    if not has_stepped:
        parts.append("no step since the last line")
    if live.mains:
        parts += [_stall(live.recent), *_slowest(live)]
    parts += _rates(live)
    if live.blocked:
        parts.append(_blocked(live.blocked[0]))
    parts += live.still[:1]
    return (
        f"io: step {live.steps:,}, {', '.join(parts)}" if live.mains else f"io: {', '.join(parts)}"
    )


_STATES = {
    "starting": "no log yet: the job has not started",
    "paused": "paused: nothing is being recorded",
    "running": "recording",
    "over": "over",
}


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{share * 100:.0f} %"


def _stall(stall: Stall) -> str:
    if not stall.is_fed:
        return "stall not measured"
    if not stall.is_joined:
        least, most = stall.stall_between
        return f"stall at least {_percent(least)}, at most {_percent(most)}: {_NOT_JOINED}"
    if stall.stall is None:
        return "stall not measured yet"
    data, save = stall.share(stall.data_wait_s) or 0.0, stall.share(stall.checkpoint_s) or 0.0
    whole = round(stall.stall * 100)
    parts = [("data", data), ("checkpoint", save), ("own calls", stall.share(stall.own_s) or 0.0)]
    brackets = ", ".join(f"{name} {share * 100:.0f}" for name, share in parts if share >= 0.005)
    return f"stall {whole} %" + (f" ({brackets})" if brackets and whole else "") + _mean(stall)


_NOT_JOINED = "whether ranks wait for each other is not known"


def _mean(stall: Stall) -> str:
    """Return the mean stall over ranks in words; "" if close to the loss of the job."""
    if (stall.stall or 0.0) - (stall.mean_stall or 0.0) < WORTH_TELLING:
        return ""
    return f", mean over ranks {_percent(stall.mean_stall)}"


def _slowest(live: Live) -> list[str]:
    return [f"slowest since the start: {live.slowest}"] if live.slowest else []


def _rates(live: Live) -> list[str]:
    rates = []
    seconds = min(WINDOW_S, max(1.0, live.elapsed_s))
    for traffic in live.recent_traffic:
        layer = "" if traffic.layer == "posix" else f" ({traffic.layer.upper()})"
        for verb, n_bytes in (("read", traffic.read_bytes), ("write", traffic.written_bytes)):
            # Less than a kilobyte a second is a process looking at itself.
            if n_bytes / seconds >= 1000:
                rates.append(f"{verb} {show(n_bytes / seconds, 'B/s')}{layer}")
    return rates or ["no bytes read or written"]


def _blocked(call: Blocked) -> str:
    return f"blocked in {call.op} {call.path or 'a file not known'} for {_whole(call.s)}"


def _whole(s: float) -> str:
    return f"{s:.0f} s" if s < 600 else show(s, "s")


def render(live: Live, width: int = 100, color: bool = False) -> str:
    """Return the panel as text of at most `width` columns.  Raises MissingDependency without
    rich."""
    return _drawn(live, Paper(width, is_utf8=True), color)


def _drawn(live: Live, paper: Paper, color: bool) -> str:
    from rich.text import Text

    inner = Paper(paper.width - 4, paper.is_utf8)
    title = Text(f" {paper.clean(paper.elide(_name(live.command) or live.run, 30))} ", "bold")
    title.append(f" {', '.join(_subtitle(live))} ", "not bold")
    stall = live.total if _is_of_all(live) else live.recent
    level = stall.level
    lines = [*_verdict(live, stall, level, inner)]
    segments = _segments(stall)
    if segments:
        legend_rows = [(key, f"{label} {show(share, 'share')}") for key, label, share in segments]
        lines.append(bar([(key, share) for key, _, share in segments], inner.width))
        lines += legend(legend_rows, inner.width)
    lines += [Text(), *_minute(live, inner), *_totals(live, inner)]
    lines += [Text(row, "red") for said in live.still for row in inner.wrap(inner.clean(said))]
    lines += _long_calls(live.blocked, inner)
    lines += [Text(row, "yellow") for gap in live.gaps for row in inner.wrap(f"Incomplete: {gap}")]
    foot = (
        f"penstock report {live.run}"
        if live.state == "over"
        else "Ctrl-C ends the watch, not the job"
    )
    return printed([boxed(lines, title, LEVELS[level], paper, foot)], paper, color)


def _is_of_all(live: Live) -> bool:
    """Return True if the panel's first line is about the whole run: the run is over, or younger
    than the line's window.

    The last seconds and the whole run are then one period, but counted from whole seconds and from
    the first step: two numbers for one quantity.
    """
    is_whole = live.watched_s + 0.5 >= live.elapsed_s
    return live.state == "over" or (is_whole and live.elapsed_s < WINDOW_S)


def _name(command: str) -> str:
    """Return the script or module of a command line, else the program."""
    words = command.split()
    names = [word for word in words[1:] if not word.startswith("-")] or words
    return names[0].rsplit("/", 1)[-1] if names else ""


def _subtitle(live: Live) -> list[str]:
    words = [live.state, show(live.elapsed_s, "s")]
    if live.steps:
        words.append(f"{live.steps:,} steps")
    if live.mains > 1:
        words.append(f"{live.mains} main processes")
    if live.workers:
        words.append(f"{live.workers} worker{'s' * (live.workers > 1)}")
    others = live.processes - live.mains - live.workers
    if live.processes and others > 0:
        words.append(f"{others} other process{'es' * (others > 1)}")
    return words


def _verdict(live: Live, stall: Stall, level: str, paper: Paper) -> list["Text"]:
    from rich.text import Text

    whole = f"the last {WINDOW_S} s"
    if _is_of_all(live):
        whole = "the whole run" if live.state == "over" else "the run so far"
    if live.state in ("starting", "paused"):
        return [Text(row, "bold cyan") for row in paper.wrap(_STATES[live.state])]
    if not stall.is_fed:
        return [Text(row, "bold cyan") for row in paper.wrap(f"NOT JUDGED: {NOT_FED}")]
    if not stall.is_joined:
        least, most = stall.stall_between
        between = f"at least {_percent(least)} and at most {_percent(most)} of {whole} stalled"
        sentence = f"NOT JUDGED: {between}: {_NOT_JOINED}"
        return [Text(row, "bold cyan") for row in paper.wrap(sentence)]
    if stall.stall is None:
        return [Text("NO TRAINING STEPS SEEN YET", "bold cyan")]
    # Shares of a single whole, printed once: time blocked by file calls is not a share of the
    # stall.
    mean = _mean(stall)
    head = f"Of {whole} {_percent(stall.stall)} {'lost by the job' if mean else 'stalled'}"
    tail = f"{mean}, {_percent(stall.storage)} blocked by file calls"
    if stall.wait_in_calls is not None:
        tail += f"; of the data wait {_percent(stall.wait_in_calls)} in file calls"
    rows = paper.wrap(head + tail)
    drawn = [Text(row) for row in rows]
    drawn[0].stylize(f"bold {LEVELS[level]}", 0, min(len(head), len(rows[0])))
    return drawn


def _segments(stall: Stall) -> list[tuple[str, str, float]]:
    """Return (key, label, share) of the bar; shares sum to 1."""
    if not stall.wall_s:
        return []
    wait_off = stall.data_wait_s - stall.data_storage_s
    save_off = stall.checkpoint_s - stall.checkpoint_storage_s
    rest = stall.wall_s - stall.data_wait_s - stall.checkpoint_s - stall.own_s
    unjoined = 0.0
    if stall.is_fed and not stall.is_joined:
        least, most = stall.stall_between
        unjoined = min(rest, ((most or 0.0) - (least or 0.0)) * stall.wall_s)
    parts = [
        ("unfed", "compute or waiting for another rank: not known which", unjoined),
        ("compute", "compute", rest - unjoined)
        if stall.is_fed
        else ("unfed", "compute or data wait: not known which", rest),
        ("own", "own file calls", stall.own_s),
        ("data storage", "data wait: storage", stall.data_storage_s),
        ("data other", "data wait: other", wait_off),
        ("checkpoint storage", "checkpoint: storage", stall.checkpoint_storage_s),
        ("checkpoint other", "checkpoint: other", save_off),
    ]
    whole = sum(max(0.0, s) for _, _, s in parts) or 1.0
    return [(key, label, s / whole) for key, label, s in parts if s / whole >= 0.0005]


def _minute(live: Live, paper: Paper) -> list["Text"]:
    """Return the last seconds as lines of letters, a letter per second."""
    from rich.text import Text

    width = min(WINDOW_S, paper.width - 34)
    seconds = live.seconds[-width:]
    rows: list[tuple[str, list[float | None], str]] = [
        ("stalled", [_sum(s.data_wait, s.checkpoint, s.own_calls) for s in seconds], "share"),
        ("read", [float(s.read_bytes) for s in seconds], "B/s"),
        ("written", [float(s.written_bytes) for s in seconds], "B/s"),
        ("steps", [float(s.steps) for s in seconds], "count"),
    ]
    drawn = []
    for label, values, unit in rows:
        numbers = [value for value in values if value is not None]
        most = max(numbers, default=0.0)
        if not most:
            continue
        said = f"at most {show(most, unit)}" + ("/s" if unit == "count" else "")
        drawn.append(Text(f"{label:<8} {paper.spark(values):>{width}}  {said}"))
    if drawn:
        drawn.insert(
            0, Text(f"The last {min(width, round(live.elapsed_s))} s, a letter a second", "bold")
        )
    return drawn


def _sum(*values: float | None) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None


def _totals(live: Live, paper: Paper) -> list["Text"]:
    from rich.text import Text

    items = []
    if live.step_s is not None:
        items.append(f"step {show(live.step_s, 's')}")
    since = live.watched_s + 0.5 < live.elapsed_s
    if live.total.stall is not None and not _is_of_all(live):
        whole = ", ".join([_stall(live.total), *_slowest(live)])
        items.append(f"{'watched' if since else 'whole run'}: {whole}")
    items += [_total(layer) for layer in live.traffic if layer.calls]
    items += [_of_endpoint(endpoint, paper) for endpoint in live.remote[:MOST_ENDPOINTS]]
    return [Text(), *(Text(row) for row in flowed(items, paper.width))] if items else []


def _total(traffic: Traffic) -> str:
    parts = [f"{traffic.calls:,} {traffic.layer.upper()} calls"]
    if traffic.read_bytes:
        parts.append(f"read {show(traffic.read_bytes, 'B')}")
    if traffic.written_bytes:
        parts.append(f"written {show(traffic.written_bytes, 'B')}")
    return ", ".join(parts)


def _of_endpoint(remote: RemoteTraffic, paper: Paper) -> str:
    name = paper.elide(paper.clean(remote.endpoint), paper.width // 2)
    parts = [f"{name}: {count(remote.connections, 'connection')}"]
    parts += [f"received {show(remote.received_bytes, 'B')}"] if remote.received_bytes else []
    parts += [f"sent {show(remote.sent_bytes, 'B')}"] if remote.sent_bytes else []
    requests = sum(n for _, n in remote.requests)
    if requests:
        parts.append(count(requests, "request"))
    if remote.retries:
        parts.append(count(remote.retries, "retry"))
    return ", ".join(parts)


def _long_calls(blocked: Sequence[Blocked], paper: Paper) -> list["Text"]:
    from rich.text import Text

    if not blocked:
        return []
    drawn = [Text(), Text("In one file call for more than a second", "bold")]
    for call in blocked:
        left, right = f"  {call.op:<8} ", f" {_whole(call.s):>9}  pid {call.pid}"
        path = paper.clean(call.path or "a file not known")
        room = paper.width - len(left) - len(right)
        drawn.append(Text(f"{left}{paper.elide(path, room):<{room}}{right}", "red"))
    return drawn
