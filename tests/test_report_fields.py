"""Every field of a report in JSON: another kind of value is refused, foreign text stays text.

The cases are generated from the dataclasses of a report of all parts."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.explain.measures import measure
from penstock.explain.report import from_json, report_of, to_json
from penstock.views import html, terminal
from synthetic import training_job

HOSTILE = '"><img/src=x/onerror=alert(1)>\x1b]0;a\x07\u202e'
# A text for a number and the other way round, no value, containers, what JSON calls no number.
WRONG: tuple[Any, ...] = ("text", 7, 1.5, True, None, [], {}, [[]], {"a": 1}, float("nan"), -1e400)

Path = tuple[str | int, ...]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """A report with an item in each of its lists, at least one of each kind of a value."""
    found: dict[str, Any] = json.loads(to_json(report_of(measure(training_job()))))
    part = found["wait"][0]
    for name in ("first_batch", "checkpoint", "startup"):
        found[name] = found[name] or [part]
    found["incidents"] = [{"kind": "failed", "headline": "It failed", "sentence": "status 1"}]
    kinds = {picture["kind"]: picture for picture in found["pictures"]}
    found["tables"], found["pictures"] = found["tables"][:4], list(kinds.values())
    for table in found["tables"]:
        table["rows"] = table["rows"][:2]
    for picture in found["pictures"]:
        for series in picture["series"]:
            series["values"] = series["values"][:3]
        picture["series"], picture["at_s"] = picture["series"][:2], picture["at_s"][:4]
    for name in ("findings", "checks", "definitions"):
        found[name] = found[name][:2]
    found["pictures"][0]["marks"] = [{"label": "ceiling", "value": 1.0, "group": ""}]
    return found


def fields_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The first item of each kind in each list, and all fields of the objects."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key), inner
            yield from fields_in(inner, (*path, key))
    elif isinstance(value, list):
        kinds = set()
        for place, inner in enumerate(value):
            if (kind := _kind(inner)) not in kinds:
                kinds.add(kind)
                yield (*path, place), inner
                yield from fields_in(inner, (*path, place))


def _kind(value: Any) -> Any:
    return value["kind"] if isinstance(value, dict) and "kind" in value else type(value)


def changed(plain: dict[str, Any], path: Path, value: Any) -> str:
    found = copy.deepcopy(plain)
    place: Any = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(found)


def alike(one: Any, other: Any) -> bool:
    """Whether both are valid for one field: numbers, or of one type."""
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, int | float):
        return type(one) is type(other)
    return isinstance(other, int | float)


def test_a_value_of_another_kind_is_refused_in_each_field(plain: dict[str, Any]) -> None:
    taken, n = [], 0
    for path, value in fields_in(plain):
        is_cell = "rows" in path or "cells" in path
        for wrong in WRONG:
            if alike(value, wrong) and wrong not in (-1e400,) and wrong == wrong:
                continue
            if _may_be(path, value, wrong) or (is_cell and not isinstance(wrong, list | dict)):
                continue
            n += 1
            try:
                from_json(changed(plain, path, wrong))
            except PenstockError:
                continue
            taken.append(f"{'.'.join(map(str, path))} = {wrong!r} (was {value!r:.40})")
    assert n > 1000
    assert "\n".join(taken) == ""


def _may_be(path: Path, value: Any, wrong: Any) -> bool:
    """Fields that have no value, or none of a number, in another report."""
    name = path[-1] if isinstance(path[-1], str) else path[-2]
    if name in ("s", "share", "n_all") or (name == "value" and path[-2] != "marks"):
        return value is None or wrong is None
    return name == "values" and (value is None or wrong is None)


def test_no_text_of_a_report_reaches_a_page_or_a_terminal_as_more_than_text(
    plain: dict[str, Any],
) -> None:
    shown, raw = 0, set()
    for path, value in fields_in(plain):
        if not isinstance(value, str):
            continue
        try:
            report = from_json(changed(plain, path, HOSTILE))
        except PenstockError:
            continue
        shown += 1
        page = html.render(report)
        raw |= {("page", *path) for text in ("<img", "\x1b", "\u202e") if text in page}
        try:
            text = terminal.render(report, 80)
        except PenstockError:  # a table without a column that it needs
            assert path[-1] == "key", path
            continue
        raw |= {("terminal", *path) for letter in ("\x1b", "\u202e") if letter in text}
    assert "\n".join(sorted(map(str, raw))) == ""
    assert shown > 60
