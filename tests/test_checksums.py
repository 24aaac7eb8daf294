"""A flipped bit in a file that travels is an error in words, never another number."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logwriter
from penstock.errors import LogError, PenstockError, RunError
from penstock.explain.measures import measure
from penstock.explain.reduce import measures_of, reduce_logs
from penstock.explain.report import from_json, report_of, to_json
from penstock.log.faults import check_header, read_faults
from penstock.recording import system
from penstock.runs.run import import_run, open_run
from penstock.safe import checksums
from penstock.views import paper
from synthetic import training_job
from test_faults import written

MS = 1_000_000


def refused_everywhere(
    path: Path, read: Callable[[], object], error: type[PenstockError], n: int = 250
) -> None:
    """Flip one bit at a time: at both ends of the file, where its structure is, and all over."""
    data = path.read_bytes()
    draws = np.random.default_rng(25)
    ends = {*range(min(40, len(data))), *range(max(0, len(data) - 160), len(data))}
    for place in (*sorted(ends), *draws.integers(0, len(data), n).tolist()):
        bit = int(draws.integers(8))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(error) as told:
            read()
        assert path.stem in str(told.value) or "manifest" in str(told.value), (place, bit)
    path.write_bytes(data)
    read()


def a_job(folder: Path) -> Path:
    process = logwriter.training(100, steps=5)
    folder.mkdir()
    process.write(folder)
    return folder


def test_a_flipped_bit_of_a_reduced_file_is_refused(tmp_path: Path) -> None:
    folder = a_job(tmp_path / "run")
    path = tmp_path / "small.reduced"
    reduce_logs(folder, list(folder.glob("*.events")), path)
    refused_everywhere(path, lambda: measures_of(path), RunError)


def test_a_flipped_bit_of_imported_tables_is_refused(tmp_path: Path) -> None:
    columns = {"notes": {"key": np.array(["a"], object), "value": np.array(["b"], object)}}
    folder = import_run(tmp_path / "run", "job.log", 5, columns)

    def read() -> object:
        with open_run(folder) as run:
            return run.sql("SELECT count(*) FROM notes")

    refused_everywhere(folder / "tables" / "notes.parquet", read, RunError, 60)
    refused_everywhere(folder / "tables" / "manifest.json", read, RunError, 60)
    refused_everywhere(folder / "tables" / "events" / "00000.parquet", read, RunError, 60)
    os.truncate(folder / "tables" / "files.parquet", 100)
    with pytest.raises(RunError, match=r"files.parquet: .*import job.log again"):
        read()


def test_damaged_tables_of_logs_are_made_again(tmp_path: Path) -> None:
    folder = a_job(tmp_path / "run")

    def rows() -> object:
        with open_run(folder) as run:
            return run.sql("SELECT * FROM spans ORDER BY ALL").fetchall()

    before = rows()
    for name in ("spans/00000.parquet", "files.parquet", "manifest.json"):
        path = folder / "tables" / name
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 16
        path.write_bytes(data)
        assert rows() == before
        assert path.read_bytes() != data


def test_tables_of_an_earlier_release_have_no_checksums_and_are_read(tmp_path: Path) -> None:
    folder = import_run(tmp_path / "run", "job.log", 5, {})
    tables = folder / "tables"
    manifest = json.loads((tables / "manifest.json").read_text())
    del manifest["sum"]
    (tables / "manifest.json").write_text(json.dumps(manifest))
    for path in tables.rglob("*.parquet"):  # equal lengths: Parquet's footer has them
        path.write_bytes(path.read_bytes().replace(b"penstock-crc32", b"something-else"))
    with open_run(folder) as run:
        assert run.sql("SELECT count(*) FROM notes").fetchall() == [(0,)]


def test_a_flipped_bit_of_the_page_faults_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "host.1.faults"
    path.write_bytes(written())
    refused_everywhere(path, lambda: read_faults(path), LogError, 600)
    path.write_bytes(written() + bytes(4096))  # a host that lost power
    assert read_faults(path).is_torn
    path.write_bytes(written(version=1))
    check_header(path)


def test_a_flipped_bit_of_a_hosts_samples_is_refused(tmp_path: Path) -> None:
    sampler = system.Sampler(tmp_path)
    sampler.sample({"12": [9, 0.5, 1, 2, 3, 4]})
    sampler.sample()
    sampler.close()
    (path,) = tmp_path.glob("*.system")
    refused_everywhere(path, lambda: system.read_system(path), LogError, 600)


def test_a_run_with_damaged_side_files_is_read_without_them_and_says_so(tmp_path: Path) -> None:
    folder = a_job(tmp_path / "run")
    faults = bytearray(written())
    faults[300] ^= 1
    (folder / "host.1.faults").write_bytes(faults)
    sampler = system.Sampler(folder, is_of_host=False)
    sampler.sample()
    sampler.close()
    (samples,) = folder.glob("*.system")
    samples.write_bytes(samples.read_bytes().replace(b'"ns":1', b'"ns":2').replace(b"[", b"[1", 1))
    with open_run(folder) as run:
        told = run.sql("SELECT value FROM notes WHERE key = 'damaged file' ORDER BY value")
        assert [name.rpartition("/")[2].split(":")[0] for (name,) in told] == sorted(
            ["host.1.faults", samples.name]
        )
        assert all("checksum" in value for (value,) in told)
        assert run.sql("SELECT count(*) FROM fault_counts").fetchall() == [(0,)]


def test_what_has_no_mark_cannot_be_sealed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    with pytest.raises(ValueError, match="no mark"):
        checksums.seal(tmp_path / "a")
    with pytest.raises(ValueError, match="damaged"):
        checksums.check(tmp_path / "a", is_sealed=True)
    os.mkfifo(tmp_path / "b")
    with pytest.raises(ValueError, match="no regular file"):
        checksums.check(tmp_path / "b")


# Reports


def wrong_places() -> list[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Values that no run has, each put into the plain values of a report."""

    def put(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
        def change(plain: dict[str, Any]) -> None:
            at: Any = plain
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value

        return change

    return [
        ("a share of 1.5", put("verdict", "stall", "value", value=1.5)),
        ("a share of -1.62e+10", put("verdict", "storage", "value", value=-16214425884.46)),
        ("'s' as the unit", put("verdict", "stall", "unit", value="s")),
        ("-1 x", put("verdict", "max_speedup", "value", value=-1)),
        ("a share of 2", put("wall", 0, "share", value=2)),
        ("sum to more", put("wall", 0, "share", value=1.0)),
        ("-3 s as", put("wall", 0, "s", value=-3)),
        ("a share of -0.1", put("wait", 0, "share", value=-0.1)),
        ("1e+31", put("wait", 0, "s", value=1e31)),
        ("-1 count", put("cost", 1, "number", "value", value=-1)),
        ("a row of 1 cells", put("tables", 0, "rows", 0, value=["a"])),
        ("a row of 2 cells", put("tables", 0, "rest", value=[{"n": 1, "cells": ["a", 1]}])),
        ("bins of 0", put("pictures", 0, "x_step", value=0)),
        ("go back in time", put("pictures", 0, "at_s", value=[3, 2])),
        ("larger than", put("pictures", 0, "series", 0, "values", value=[1] * 200_000)),
        ("different lengths", put("pictures", 0, "series", 0, "values", value=[])),
        ("letters as command", put("command", value="a" * (2 << 20))),
        ("larger than", put("tables", 0, "rows", value=[["a"]] * 200_000)),
        ("more than 10,000 gaps", put("gaps", value=[GAP] * 20_000)),
        ("no report", put("pictures", 0, "kind", value="dots")),
        ("no report", put("wall", 0, "s", value=10**400)),
    ]


GAP = {"what": "a", "state": "measured", "why": ""}


@pytest.fixture(scope="module")
def plain() -> str:
    report = report_of(measure(training_job()))
    assert all((report.wall, report.wait, report.tables, report.pictures, report.cost))
    return to_json(report)


@pytest.mark.parametrize("place", range(len(wrong_places())))
def test_a_report_with_a_value_that_no_run_has_is_refused(place: int, plain: str) -> None:
    told, change = wrong_places()[place]
    values = json.loads(plain)
    if told == "bins of 0" or "series" in told or told == "different lengths":
        kept = [p for p in values["pictures"] if p["kind"] != "bars" and len(p["series"]) > 1]
        values["pictures"] = kept
    change(values)
    with pytest.raises(PenstockError, match=re.escape(told)):
        from_json(json.dumps(values))


def test_a_sound_report_is_read_back(plain: str) -> None:
    assert to_json(from_json(plain)) == plain


def test_measures_of_damaged_data_make_no_report() -> None:
    measures = measure(training_job())
    damaged = replace(measures, training=replace(measures.training, data_wait_s=-1.6e9))
    with pytest.raises(PenstockError, match=r"a report with .*its data is damaged"):
        report_of(damaged)


@pytest.mark.parametrize("width", [1, 3, 80])
@pytest.mark.parametrize("share", [-1.6e7, -1.0, 0.0, 0.4, 1.0, 2.0, 8.4e9])
def test_a_bar_ends_for_any_shares(share: float, width: int) -> None:
    drawn = paper.bar([("compute", share), ("data storage", 1 - share), ("own", 0.0)], width)
    assert len(drawn.plain) == max(width, 3) or width < 3
