"""A plan on disk, as a table and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingDependency, TierError
from penstock.safe import bounded, checksums, drafts
from penstock.stage.plan import ComparedPolicy
from penstock.stage.source import WantedFile
from penstock.words import count, show

if TYPE_CHECKING:
    from penstock.stage.plan import Plan

__all__ = ["facts_of", "is_plan", "load", "picture", "store", "table_of"]

VERSION = 1
MOST_LINE_BYTES = 1 << 20


# --- as a file -----------------------------------------------------------------------------------


def store(made: Plan, path: Path) -> None:
    """Write a plan, whole or not at all.  Raises TierError."""
    facts = {"penstock_plan": VERSION, **_facts(made)}
    try:
        with drafts.draft(path) as file:
            file.write(checksums.line(json.dumps(facts).encode()) + b"\n")
            for wanted in made.wanted:
                line = json.dumps({"path": wanted.path, "gain_s": wanted.gain_s})
                file.write(checksums.line(line.encode()) + b"\n")
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error


def is_plan(path: Path) -> bool:
    """Return True if a file begins as a plan does."""
    try:
        with bounded.opened(path) as file:
            return file.read(17) == b'{"penstock_plan":'
    except OSError:
        return False


def load(path: Path) -> tuple[WantedFile, ...]:
    """Return the files of a plan.  Raises TierError: no plan, another version, a damaged line."""
    try:
        with bounded.opened(path) as file:
            first = file.readline(MOST_LINE_BYTES)
            head = json.loads(first)
            if not isinstance(head, dict) or head.get("penstock_plan") != VERSION:
                raise TierError(f"{path}: no plan of this version; penstock stage plan makes one")
            has_sums = b'"crc32"' in first  # plans of earlier releases have none
            _check_sum(first, has_sums)
            return tuple(_lines(file, has_sums))
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise TierError(f"{path}: damaged ({error}); penstock stage plan makes it anew") from error


def _check_sum(line: bytes, has_sums: bool) -> None:
    if (has_sums or checksums.line_has_sum(line.rstrip(b"\n"))) and not checksums.line_is_sound(
        line.rstrip(b"\n")
    ):
        raise ValueError("a line that differs from its checksum")


def _lines(file: Iterable[bytes], has_sums: bool) -> Iterator[WantedFile]:
    for line in file:
        _check_sum(line, has_sums)
        row = json.loads(line)
        wanted = WantedFile(row["path"], float(row["gain_s"]))
        if not isinstance(wanted.path, str) or not math.isfinite(wanted.gain_s):
            raise ValueError("a line that is no file")
        if not wanted.path.startswith("/") or ".." in wanted.path.split("/"):
            raise ValueError(f"{wanted.path!r}: no absolute path")
        yield wanted


# --- shown ---------------------------------------------------------------------------------------


def table_of(made: Plan) -> Any:
    """Return a plan as a value for printing with rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    of_wait = f" of {show(made.wait_s, 's')} data wait" if made.wait_s is not None else ""
    brings = f"expected to remove {show(made.gain_s, 's')}{of_wait}"
    lines: list[Any] = [
        Text(
            f"{count(made.files, 'file')} of {made.all_files:,}, {show(made.size_bytes, 'B')} of "
            f"{show(made.all_bytes, 'B')}: {brings if made.gain_s > 0 else 'nothing to gain'}",
            "bold",
        ),
    ]
    gains_s = (row.gain_s for rows in (made.curve, made.compared) for row in rows)
    if made.gain_s <= 0 and all(gain_s <= 0 for gain_s in gains_s):
        return Group(*lines, *(Text(note) for note in made.notes))
    lines += [Text(_sentence(made)), Text("")]
    curve = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (("staged", "right"), ("removes", "right"), ("", "left")):
        curve.add_column(name, justify=justify)  # type: ignore[arg-type]
    most = max((point.gain_s for point in made.curve), default=0.0)
    for point in made.curve[1:]:
        bar = "█" * round(30 * point.gain_s / most) if most > 0 else ""
        curve.add_row(show(point.size_bytes, "B"), show(point.gain_s, "s"), Text(bar, "cyan"))
    lines += [curve, Text("")]
    others = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("by", "files", "bytes", "removes"):
        others.add_column(name, justify="left" if name == "by" else "right")
    mine = ComparedPolicy(made.policy, made.files, made.size_bytes, made.gain_s)
    for policy in (mine, *made.compared):
        others.add_row(
            policy.policy,
            f"{policy.files:,}",
            show(policy.size_bytes, "B"),
            show(policy.gain_s, "s"),
        )
    lines.append(others)
    lines += [Text(note, "dim") for note in made.notes]
    return Group(*lines)


def _sentence(made: Plan) -> str:
    parts = []
    if made.of_best is not None:
        share = f"{100 * made.of_best:.1f} %"
        parts.append(f"at least {share} of the largest possible gain")
    if made.copy_s == 0:
        parts.append("all of them are there already")
    elif made.copy_s is None or made.copy_least_s is None:
        parts.append("the time of copying is not known")
    else:
        least, most = show(made.copy_least_s, "s"), show(made.copy_s, "s")
        span = least if least == most else f"{least} to {most} (penstock ceiling RUN tells more)"
        parts.append(f"copying takes {span}")
        per_epoch_s = made.gain_s / made.epochs
        if per_epoch_s > 0:
            epochs = math.ceil(made.copy_s / per_epoch_s)
            parts.append(f"paid back after {count(max(1, epochs), 'epoch')}")
    return ", ".join(parts)


def picture(made: Plan, path: Path) -> None:
    """Write the curve as a page (.html) or a picture (.png, .svg, .pdf).

    Raises MissingDependency; TierError: another suffix, a file that cannot be written.
    """
    gb = [point.size_bytes / 1e9 for point in made.curve]
    gain_s = [point.gain_s for point in made.curve]
    marks = [(policy.policy, policy.size_bytes / 1e9, policy.gain_s) for policy in made.compared]
    marks.append((made.policy, made.size_bytes / 1e9, made.gain_s))
    try:
        if path.suffix == ".html":
            _page(gb, gain_s, marks, path)
        elif path.suffix in (".png", ".svg", ".pdf"):
            _figure(gb, gain_s, marks, path)
        else:
            raise TierError(f"{path}: choose a name that ends in .html, .png, .svg or .pdf")
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error


X_TITLE, Y_TITLE = "staged (GB)", "data wait removed (s)"
Marks = Sequence[tuple[str, float, float]]
MARKS = ("s", "^", "v", "d", "o")
SYMBOLS = ("square-open", "triangle-up-open", "triangle-down-open", "diamond-open", "circle-open")


def _page(gb: Sequence[float], gain_s: Sequence[float], marks: Marks, path: Path) -> None:
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError as error:
        raise MissingDependency("a page needs an extra: pip install 'penstock[html]'") from error
    figure = go.Figure(go.Scatter(x=gb, y=gain_s, mode="lines+markers", name="best by gain"))
    for number, (name, x, y) in enumerate(marks):
        symbol = SYMBOLS[number % len(SYMBOLS)]
        figure.add_scatter(
            x=[x], y=[y], mode="markers", name=name, marker={"size": 10, "symbol": symbol}
        )
    figure.update_layout(xaxis_title=X_TITLE, yaxis_title=Y_TITLE, template="simple_white")
    text = figure.to_html(include_plotlyjs=True)
    drafts.write(path, text)


def _figure(gb: Sequence[float], gain_s: Sequence[float], marks: Marks, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a picture needs an extra: pip install matplotlib; a page (.html) does not"
        ) from error
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(gb, gain_s, marker="o", markersize=3, label="best by gain")
    # A legend, as labels beside overlapping marks cannot be read.
    for number, (name, x, y) in enumerate(marks):
        axes.plot([x], [y], MARKS[number % len(MARKS)], markersize=7, label=name, fillstyle="none")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_xlabel(X_TITLE)
    axes.set_ylabel(Y_TITLE)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    with drafts.by_name(path) as draft:
        figure.savefig(draft)


def facts_of(made: Plan) -> Mapping[str, Any]:
    """Return a plan as a JSON value, without the files."""
    return {**_facts(made), "wanted": len(made.wanted)}


def _facts(made: Plan) -> dict[str, Any]:
    facts = asdict(replace(made, wanted=()))  # asdict copies whatever there is
    del facts["wanted"]
    return facts
