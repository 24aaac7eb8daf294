"""Numbers in words: three digits, the unit last.  Knows nothing else."""

from collections.abc import Sequence

__all__ = ["Cell", "count", "per_cent", "show"]

Cell = str | int | float | bool | None

MANY = {
    "copy": "copies",
    "process": "processes",
    "fetch": "fetches",
    "part of logs": "parts of logs",
    "retry": "retries",
}


def show(value: Cell, unit: str) -> str:
    """Return a cell in words: three digits, the unit last; an en dash for a missing value."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit == "share":
        return per_cent(value)
    if unit == "count":
        return f"{value:,.0f}" if value == int(value) or value >= 100 else _digits(value)
    if unit == "x":
        return "<0.01x" if 0 < value < 0.005 else f"{_digits(value)}x"
    if unit == "s":
        return _seconds(value)
    if unit in ("B", "B/s"):
        return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB", "EB"), unit[1:])
    return f"{value}"


def per_cent(share: float) -> str:
    if not share:
        return "0 %"
    if abs(share) < 0.0005:
        return "<0.1 %"
    return (
        f"{share:.1%}".replace("%", " %")
        if abs(share) < 0.0995
        else f"{share:.0%}".replace("%", " %")
    )


def _seconds(s: float) -> str:
    if s >= 5940:  # 99 min
        return f"{round(s / 60) // 60} h {round(s / 60) % 60} min"
    if s >= 599.5:
        return f"{round(s) // 60} min {round(s) % 60} s"
    if abs(s) >= 0.9995 or not s:
        return f"{_digits(s)} s"
    return _scaled(s * 1e9, ("ns", "µs", "ms"), "")


def _scaled(value: float, names: Sequence[str], per: str) -> str:
    scale = 0
    while abs(value) >= 999.5 and scale + 1 < len(names):
        value /= 1000
        scale += 1
    return f"{_digits(value) if scale or value % 1 else int(value)} {names[scale]}{per}"


def _digits(value: float) -> str:
    """Return three significant digits, without meaningless zeros after the point."""
    size = abs(value)
    text = f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
    return "0" if float(text) == 0 else text


def count(number: int, singular: str) -> str:
    """A number of things: 1 step, 2 steps, 3 other processes."""
    *first, last = singular.split() if singular not in MANY else [singular]
    return (
        f"{number:,} {singular if number == 1 else ' '.join((*first, MANY.get(last, last + 's')))}"
    )
