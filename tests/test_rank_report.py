"""What a report says of ranks: sums known beforehand, and ranks that are missing or twice there."""

import re
from collections import defaultdict

import pytest

from findings_examples import each_rank_reads, two_ranks
from penstock.explain.measures import measure
from penstock.explain.report import Report, from_json, report_of, to_json
from penstock.views import html, terminal
from synthetic import MS, Synthetic, reads

MIB = 1 << 20


def gaps(report: Report) -> dict[str, str]:
    return {gap.what: gap.why for gap in report.gaps}


def ranked(*ranks: int, size: int = 4, **more: object) -> Synthetic:
    """Processes that train for a second, one of each rank."""
    run = Synthetic()
    for place, rank in enumerate(ranks):
        process = 1 + place
        run.process(process, end=1000 * MS, rank=rank, world_size=size, **more)
        run.step(100 * MS, 200 * MS, process=process)
    return run


def test_each_ranks_row_is_its_own() -> None:
    measures = measure(each_rank_reads(0.5, passes=2))
    assert [row.rank for row in measures.ranks] == [0, 1, 2, 3]
    # 20 files of 1 MiB in each of two passes; 20 ms a file, the first before the wall time.
    assert {row.read_bytes for row in measures.ranks} == {40 * MIB}
    for row in measures.ranks:
        assert row.data_wait_s == pytest.approx(39 * 0.02, rel=0.01)
        assert row.own_s == pytest.approx(row.wall_s - row.data_wait_s)
        assert row.barrier_s is None


def test_files_are_told_by_how_many_ranks_read_them() -> None:
    run = each_rank_reads(0.25)  # ten files each, none twice
    for rank in (0, 3):  # on two hosts
        reads(run, 900 * MS, 1 + 10 * rank, path="/data/39.bin", size=1000)
    two, one = measure(run).sharing
    # 39.bin is rank 3's: rank 0 read 1000 bytes of it, rank 3 these beside the whole.
    assert (two.readers, two.files, two.size_bytes, two.read_bytes) == (2, 1, MIB, MIB + 2000)
    assert two.node_bytes == two.read_bytes  # of two hosts, each once
    assert (one.readers, one.files, one.read_bytes) == (1, 39, 39 * MIB)


def test_what_a_host_would_read_once_is_no_more_than_its_ranks_read() -> None:
    (all_four,) = measure(each_rank_reads(1.0)).sharing
    assert (all_four.readers, all_four.files) == (4, 40)
    assert all_four.read_bytes == 160 * MIB
    assert all_four.node_bytes == 80 * MIB  # two hosts with two ranks each


def test_the_heat_of_a_rank_sums_to_what_it_waited() -> None:
    measures = measure(two_ranks(30))
    sums: dict[int, float] = defaultdict(float)
    for cell in measures.rank_cells:
        assert cell.first == cell.last
        assert cell.wait_s <= cell.bin_s * 1.000001
        sums[cell.first] += cell.wait_s
    for row in measures.ranks:  # and the first batch, which is none of the wall time's
        first_s = 0.030 if row.rank else 0.010
        assert sums[row.rank or 0] == pytest.approx(row.data_wait_s + first_s, rel=1e-3)


def test_many_ranks_share_rows_that_show_the_longest_wait() -> None:
    run = ranked(*range(130), size=130)
    run.wait(300 * MS, 400 * MS, 0, process=1 + 7)
    cells = measure(run).rank_cells
    assert {cell.row for cell in cells} == set(range(44))  # three ranks a row, the last has one
    assert [(c.first, c.last) for c in cells if c.row == 43] == [(129, 129)]
    assert sum(c.wait_s for c in cells if (c.first, c.last) == (6, 8)) == pytest.approx(0.1)
    shown = terminal.render(report_of(measure(run)))
    assert "Data wait, by rank" in shown
    assert len(re.findall(r"^  ranks? \d", shown, re.MULTILINE)) == 15


def test_the_views_show_ranks_and_json_keeps_them() -> None:
    report = report_of(measure(each_rank_reads(1.0)))
    assert from_json(to_json(report)) == report
    shown = terminal.render(report)
    for heading in ("Data wait, by rank", "Ranks", "Data files by how many ranks read them"):
        assert heading in shown
    assert "rank 3" in shown
    page = html.render(report)
    assert 'id="rank_waits"' in page
    assert 'id="sharing"' in page
    assert all(len(line) <= 60 for line in terminal.render(report, 60).splitlines())


def test_one_rank_has_none_of_it() -> None:
    report = report_of(measure(ranked(0, size=1)))
    assert not report.table("ranks").rows
    assert not report.table("sharing").rows
    assert not any(picture.kind == "ranks" for picture in report.pictures)
    assert not any("rank" in gap.what for gap in report.gaps)


def test_missing_ranks_are_a_gap() -> None:
    report = report_of(measure(ranked(0, 3, size=13)))
    assert gaps(report)["11 of 13 ranks"].startswith("left no log here: 1, 2, 4, 5, 6, 7, 8, 9, …")
    assert not any("rank" in what for what in gaps(report_of(measure(ranked(0, 1, 2, 3)))))


def test_a_rank_that_trains_twice_at_once_is_a_gap() -> None:
    report = report_of(measure(ranked(0, 1, 2, 3, 2)))
    assert "two jobs in one folder" in gaps(report)["ranks 2"]


def test_a_program_that_a_rank_starts_is_no_second_rank() -> None:
    run = ranked(0, 1, 2, 3)
    run.process(9, end=900 * MS, rank=2, world_size=4, parent=3)
    run.step(300 * MS, 400 * MS, process=9)
    assert not any(what.startswith("ranks") for what in gaps(report_of(measure(run))))


def test_clocks_that_nothing_aligns_are_a_gap_and_those_far_off_too() -> None:
    run = ranked(0, 1, size=2)
    run.rows["notes"] += [
        (None, "clock", "node1\treference\t0\t0\t\t0"),
        (None, "clock", "node2\twall clock\t0\t\t\t0"),
        (None, "clock", f"node3\tsteps\t{7200 * 10**9}\t{40 * MS}\t{2 * MS}\t50"),
    ]
    report = report_of(measure(run))
    assert "no offset was measured" in gaps(report)["clock of node2"]
    assert "2 h" in gaps(report)["clock of node3"]
    assert len(report.table("clocks").rows) == 3
    assert "wrong by at most" in terminal.render(report)
