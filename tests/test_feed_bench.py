"""`penstock feed bench`: what it says of a small data set, as text, as JSON and as a page."""

import json
import os
import subprocess
from pathlib import Path

import lmdb
import pytest

import penstock
from conftest import PENSTOCK

LIBRARY = Path(penstock.__file__).with_name("libfeed.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the reader is not built: make native")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "small.lmdb"
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(300):
            txn.put(b"%06d" % i, os.urandom(20_000))
    return folder


def bench(path: Path, *options: str, status: int = 0) -> str:
    finished = subprocess.run(
        [PENSTOCK, "feed", "bench", path, "--seconds", "0.5", *options],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == status, finished.stderr
    return finished.stdout if not status else finished.stderr


def test_each_reader_has_a_row_and_the_numbers_agree_with_each_other(path: Path) -> None:
    told = json.loads(bench(path, "--json"))
    assert (told["kind"], told["n_records"], told["record_bytes"]) == ("lmdb", 300, 6_000_000)
    assert [(rate["reader"], rate["order"]) for rate in told["rates"]] == [
        ("penstock.feed", "none"),
        ("penstock.feed", "block"),
        ("penstock.feed", "global"),
        ("py-lmdb readahead=False", "global"),
        ("py-lmdb", "global"),
    ]
    for rate in told["rates"]:
        assert 0 < rate["n_records"] <= 300
        assert rate["record_bytes"] == 20_000 * rate["n_records"]
        assert rate["bandwidth_bps"] == pytest.approx(20_000 * rate["records_hz"])
        assert rate["is_cold"] or rate["why_not_cold"]
    assert told["ceiling_bps"] == max(each["bandwidth_bps"] for each in told["ceilings"])


def test_the_text_has_the_rows_and_the_page_is_whole(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a plot needs plotly: penstock[html]")
    text = bench(path, "--plot", str(tmp_path / "speed.html"))
    assert text.count("penstock.feed ") == 3
    assert "ceiling: " in text
    page = (tmp_path / "speed.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert "py-lmdb readahead=False" in page


def test_what_is_no_data_set_is_an_error_in_a_line(tmp_path: Path) -> None:
    said = bench(tmp_path / "nothing", status=2)
    assert len(said.splitlines()) == 1
    assert "nothing" in said


@pytest.mark.parametrize("n_databases", [1, 2])
def test_py_lmdb_reads_the_database_that_was_asked_for(tmp_path: Path, n_databases: int) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26, max_dbs=2) as env:
        for name in (b"images", b"labels")[:n_databases]:
            with env.begin(write=True, db=env.open_db(name)) as txn:
                for i in range(50):
                    txn.put(b"%06d" % i, name * 1000)
    asked = ["--database", "images"] if n_databases > 1 else []
    told = json.loads(bench(tmp_path, *asked, "--json"))
    assert [rate["n_records"] for rate in told["rates"]] == [50] * 5


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(
    path: Path, tmp_path: Path
) -> None:
    for name, why in (("p.png", "name it p.html"), ("no/p.html", "no folder")):
        said = bench(path, "--plot", str(tmp_path / name), status=2)
        assert why in said
        assert len(said.splitlines()) == 1
        assert not (tmp_path / name).exists()


def test_the_page_has_a_title_and_is_for_light_and_dark(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a plot needs plotly: penstock[html]")
    bench(path, "--plot", str(tmp_path / "speed.html"))
    page = (tmp_path / "speed.html").read_text()
    assert "<title>small.lmdb: MB/s of records</title>" in page
    assert '<meta name="color-scheme" content="light dark">' in page
