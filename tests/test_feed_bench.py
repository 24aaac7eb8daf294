"""`penstock feed bench`: what it says of a small data set, as text, as JSON and as a page."""

import contextlib
import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from click.testing import CliRunner

import penstock
from fixtures import PENSTOCK
from penstock.cli import cli
from penstock.cli.feed import _print_benched
from penstock.errors import FeedError
from penstock.feed import Feed, Index, open_index
from penstock.places.tiers import Ceiling, Warmth
from penstock.trial import feed as bench_feed

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
    best = max((each["bandwidth_bps"] for each in told["ceilings"]), default=None)
    assert told["ceiling_bps"] == best
    for rate in told["rates"]:
        share = rate["bandwidth_bps"] / best if best and rate["is_measured"] else None
        assert rate["ceiling_share"] == share


def test_the_text_has_the_rows_and_the_page_is_whole(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a plot needs plotly: penstock[html]")
    text = bench(path, "--plot", str(tmp_path / "speed.html"))
    assert text.count("penstock.feed ") == 3
    assert "ceiling: " in text or "too small to measure" in text
    page = (tmp_path / "speed.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert "py-lmdb readahead=False" in page


def test_what_is_no_data_set_is_an_error_in_a_line(tmp_path: Path) -> None:
    said = bench(tmp_path / "nothing", status=2)
    assert len(said.splitlines()) == 1
    assert "nothing" in said


def test_an_empty_set_has_nothing_to_measure_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.tfrecord"
    path.touch()
    with pytest.raises(FeedError, match="holds no record"):
        bench_feed.measure(open_index(path, cache=False))


@pytest.mark.parametrize("is_small", [True, False])
def test_a_set_too_small_to_measure_is_told_and_makes_no_ratio(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    pytest.importorskip("plotly", reason="a plot needs plotly: penstock[html]")
    monkeypatch.setattr(bench_feed, "MEASURABLE_S", 1000 if is_small else 0)
    page = tmp_path / "speed.html"
    words = ["feed", "bench", str(path), "--seconds", "0.5", "--plot", str(page)]
    if is_small:  # the time for a ceiling is over before the files are
        monkeypatch.setattr(bench_feed.tiers, "read_ceiling", lambda files, seconds_each: [])
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    head, *rows = done.stdout.splitlines()[1:7]
    assert head.split()[-2:] == ["ceiling", "device"]
    for row in rows:
        ratios = row.split("  too short")[0].split("  not cold")[0].split()[-2:]
        assert (ratios == ["–", "–"]) == is_small, row
        assert ("too short: " in row) == is_small
    assert ("too small to measure" in done.stdout) == is_small
    assert ("MB or more does" in done.stdout) == is_small
    assert ("too small to measure" in page.read_text()) == is_small
    assert ('"text":"ceiling"' in page.read_text()) != is_small


def test_what_is_left_of_a_ceiling_whose_files_ended_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = bench_feed.tiers.read_ceiling

    def ended(files: list[str], seconds_each: float) -> list[Ceiling]:
        first, *others = measured(files, seconds_each)
        return [replace(first, seconds=0.0), *(replace(one, seconds=9.0) for one in others)]

    monkeypatch.setattr(bench_feed.tiers, "read_ceiling", ended)
    benched = bench_feed.measure(open_index(path, cache=False), seconds=0.1)
    assert benched.ceiling_bps is None
    assert any("too small to measure" in said for said in benched.missing)


def test_no_row_says_0_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = bench_feed.ReaderRate("one", "none", True, "", 3, 300, None, 0.6, False)
    benched = bench_feed.Benched("a", "tar", 3, 300, 1, (), (rate,), ())
    (row,) = (line for line in told_of(benched).splitlines() if line.startswith("one "))
    assert row.split()[2:] == ["5", "0.0005", "–", "–"]


def told_of(benched: bench_feed.Benched) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _print_benched(benched)
    return out.getvalue()


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


class Storage:
    """A clock, and two readers that share storage of 10 MB/s: portions of 10 MB come in pairs."""

    def __init__(self, n_portions: int) -> None:
        self.now_s, self.n_portions = 0.0, n_portions

    def perf_counter(self) -> float:
        return self.now_s

    def portions(self) -> bench_feed.Given:
        self.now_s += 0.5  # until it has begun
        for number in range(self.n_portions):
            self.now_s += 0 if number % 2 else 2.0
            yield 100, 10_000_000


@pytest.mark.parametrize(("n_portions", "records", "seconds"), [(100, 200, 2.0), (3, 300, 4.5)])
def test_what_was_read_ahead_at_the_cut_is_not_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch, n_portions: int, records: int, seconds: float
) -> None:
    """And what the kernel counted for nobody, as on FUSE, is not measured, and not nothing."""
    storage = Storage(n_portions)
    monkeypatch.setattr(bench_feed, "time", storage)
    monkeypatch.setattr(bench_feed, "_device_bytes", lambda: 7)
    index = open_index(path)
    for is_cold in (True, False):
        storage.now_s = 0.0
        warmth = Warmth(0, 1, is_cold, "")
        monkeypatch.setattr(bench_feed.tiers, "warmth_of", lambda files, seen=warmth: seen)
        rate = bench_feed._rate(index, "one", "none", storage.portions, seconds=3)
        assert (rate.n_records, rate.seconds) == (records, seconds)
        assert rate.amplification == (None if is_cold else 0)
    if n_portions == 100:
        assert rate.bandwidth_bps == 10e6


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """64 files of 2 MB, sparse but for two bytes: a batch of all is more than a portion."""
    for i in range(64):
        with (tmp_path / f"{i:02d}.bin").open("wb") as file:
            file.write(b"a")
            file.truncate(2_000_000)
    return tmp_path


def test_a_batch_that_does_not_fit_is_made_smaller_and_told(large: Path) -> None:
    told = json.loads(bench(large, "--json"))
    assert told["batch_size"] == 32
    assert [rate["n_records"] for rate in told["rates"]] == [64] * 3
    assert "batches are of 32 records: 64 of the largest do not fit" in bench(large)


def one_larger(index: Index, n_bytes: int) -> Index:
    """With a last record, as if the file had it."""
    length = index.length.copy()
    length[-1] = n_bytes
    return Index(
        index.path, index.kind, index.files, index.file, index.offset, length, index.keys,
        index.key_end, index.fingerprint,
    )  # fmt: skip


@pytest.mark.parametrize("shuffle", ["none", "block", "global"])
def test_a_batch_that_does_not_fit_is_refused_before_the_first_is_given(
    large: Path, shuffle: str
) -> None:
    index = open_index(large)
    with Feed(index, 4, shuffle=shuffle, buffer_bytes=32 << 20) as feed:
        assert sum(map(len, feed)) == 64
    index = one_larger(index, 11 << 20)
    with (
        Feed(index, 1, shuffle=shuffle, buffer_bytes=32 << 20) as feed,
        pytest.raises(FeedError, match=r"63\.bin.*raise buffer_bytes, or lower batch_size"),
    ):
        iter(feed)
    sizes = np.sort(index.length)
    assert sizes[0] < (32 << 20) // 3 < sizes[-1]


def test_what_was_measured_is_told_where_the_page_has_no_room(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="a plot needs plotly: penstock[html]")
    finished = subprocess.run(
        ["bash", "-c", 'ulimit -f 600; exec "$0" feed bench "$1" --seconds 0.1 --plot "$2"',
         PENSTOCK, path, tmp_path / "page.html"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert finished.returncode == 2, finished.stderr
    assert finished.stdout.count("penstock.feed ") == 3
    assert "the page was not written" in finished.stderr
    assert not list(tmp_path.glob("*page.html*"))


def test_inspect_reads_the_beginning_of_a_record_and_no_more(tmp_path: Path) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(60_000_000_000)
    finished = subprocess.run(
        ["bash", "-c", 'ulimit -v 6000000; exec "$0" feed inspect "$1"', PENSTOCK, tmp_path],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "60.0 GB" in finished.stdout
