"""LMDBIO's formula: pages counted by hand, files written by LMDB, the table in the docs."""

import json
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from fixtures import PENSTOCK
from penstock.errors import MissingDependency
from penstock.feed.index import open_index
from penstock_lab import study
from penstock_lab.provenance import (
    HISTORIES,
    KEY_BYTES,
    Provenance,
    markdown,
    measure,
    predicted_pages,
)

DOCS = Path(__file__).parents[2] / "docs" / "experiments" / "provenance.md"


def pages(written: Provenance, n: int) -> list[int]:
    return predicted_pages(written, n).tolist()


def test_pages_of_a_growing_tree_are_as_counted_by_hand() -> None:
    # Page 2 is the root, a leaf.  Before record 3 a second leaf (9) and a branch above both (10);
    # before record 6 a third (17); before record 9 a fourth (24), the branch is full: a second one
    # (25), and a root above both (26).  The second branch begins with two keys: before record 12 it
    # takes a leaf's (33), before record 15 it is full (40, 41).
    full = Provenance(2, keys_per_leaf=3, keys_per_branch=3, is_append=True)
    first = [3, 5, 7, 11, 13, 15, 18, 20, 22]
    assert pages(full, 16) == [*first, 27, 29, 31, 34, 36, 38, 42]
    # Without the flag the last key moves on with the new key: leaves grow by two.
    assert pages(Provenance(2, 3, 3), 6) == [3, 5, 7, 11, 13, 16]


def test_pages_of_small_transactions_are_as_counted_by_hand() -> None:
    # The second transaction copies the leaf (7) and lists the old leaf as free (12); the third
    # copies again (13) and lists (18); the fourth may reuse the second's freed pages.
    written = Provenance(2, keys_per_leaf=100, keys_per_branch=100, records_per_commit=2)
    assert pages(written, 7) == [3, 5, 8, 10, 14, 16, 19]


@pytest.mark.parametrize(("record_bytes", "n_pages"), [(4080, 1), (4081, 2), (8176, 2), (8177, 3)])
def test_a_record_takes_pages_with_its_header(record_bytes: int, n_pages: int) -> None:
    assert Provenance.of(record_bytes).pages_per_record == n_pages


def test_the_hand_count_is_what_lmdb_does(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env:
        for start in range(0, 8, 2):
            with env.begin(write=True) as txn:
                for record in range(start, start + 2):
                    txn.put(b"%0*d" % (KEY_BYTES, record), bytes(5000))
    exact = (open_index(tmp_path, cache=False).offset // 4096).tolist()
    assert exact[:7] == [3, 5, 8, 10, 14, 16, 19]
    assert pages(Provenance.of(5000, 2), 8) == exact


def test_the_table_in_the_docs_is_what_is_measured(tmp_path: Path) -> None:
    """The first two columns; the others take twenty times as many bytes."""
    databases = measure(tmp_path / "data", sizes=(3_000, 5_000))
    assert list((tmp_path / "data").iterdir()) == []
    said = [line.split(" | ")[:3] for line in DOCS.read_text().splitlines() if " | " in line]
    lines = [line.removesuffix(" |").split(" | ") for line in markdown(databases).splitlines()]
    assert len(lines) == 2 + len(HISTORIES)
    for line in (lines[0], *lines[2:]):
        assert line in said
    assert {each.n_wrong for each in databases if "one transaction" in each.history} == {0}


def test_without_py_lmdb_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingDependency, match=r"py-lmdb: pip install penstock-lab"):
        measure(tmp_path, 10)


def test_the_command_prints_a_row_for_each_way_to_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [PENSTOCK, "bench", "provenance", tmp_path / "new", "--records", "20", "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done
    rows = json.loads(done.stdout)
    assert [each["history"] for each in rows[::4]] == [each.name for each in HISTORIES]
    read = study.read_found(tmp_path / "new" / "provenance.json")
    assert len(read.points) == len(rows)
    assert read.points[-1]["wrong"] == rows[-1]["n_wrong"] / 20
    table = (tmp_path / "new" / "provenance.md").read_text()
    assert table.startswith("| written | 3,000 B |")
    assert (tmp_path / "new" / "provenance.csv").exists()
    again = [PENSTOCK, "bench", "provenance", tmp_path, "--records", "20"]
    done = subprocess.run(again, capture_output=True, text=True)
    assert done.returncode != 0  # somebody else's folder
    assert "what is in it is no study's" in done.stderr
