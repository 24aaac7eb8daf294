"""Whether ranks wait for each other, by ranks of which it is known; and what the job loses then."""

from typing import Any

import pytest

from penstock.explain.compare import limits
from penstock.explain.measures import Coupling, measure
from penstock.explain.questions import prepare
from penstock.explain.report import Report, report_of
from stepping import MS, Ranks, apart, coupling_of, even, in_pace, now_and_then, one_slow, together
from synthetic import Synthetic

COMPUTE = even(20, 24)


def coupling(ranks: Ranks) -> Coupling:
    return coupling_of(ranks.run())


def rows_of(run: Synthetic, table: str, columns: str) -> list[tuple[Any, ...]]:
    prepare(run.connection, (table,))
    found: list[tuple[Any, ...]] = run.connection.execute(
        f"SELECT {columns} FROM {table} ORDER BY ALL"
    ).fetchall()
    return found


@pytest.mark.parametrize(("n", "steps"), [(2, 120), (4, 40), (10, 20)])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("wait", [one_slow(100), now_and_then(20)], ids=["one slow", "by turns"])
def test_ranks_that_meet_in_each_step_are_together(
    n: int, steps: int, seed: int, wait: object
) -> None:
    ranks = together(n, steps, wait, COMPUTE, seed=seed)  # type: ignore[arg-type]
    found = coupling(ranks)
    assert (found.how, found.size, found.mains) == ("together", 1, n)


def test_a_rank_that_waits_alone_needs_few_steps_to_be_known() -> None:
    assert coupling(together(2, 20, one_slow(100), COMPUTE)).how == "together"
    assert coupling(together(2, 6, one_slow(100), COMPUTE)).how == "not known"


@pytest.mark.parametrize("seed", range(2))
def test_ranks_that_meet_every_fourth_step_are_together(seed: int) -> None:
    found = coupling(together(8, 400, now_and_then(20), COMPUTE, every=4, seed=seed))
    assert found.how == "together"
    assert found.size is not None
    assert found.size <= 4


@pytest.mark.parametrize("n", [2, 4, 10])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "ranks",
    [
        lambda n, seed: apart(n, 300, one_slow(100), COMPUTE, seed=seed),
        lambda n, seed: apart(n, 300, now_and_then(20), COMPUTE, seed=seed),
        lambda n, seed: apart(n, 60, even(0, 0.001), even(50, 52), seed=seed),
        # Each epoch begins with a long wait in all of them: they look alike, and do not meet.
        lambda n, seed: apart(
            n, 300, lambda rng, m: rng.exponential(10, m) + 900 * (rng.random() < 0.02), COMPUTE,
            seed=seed,
        ),
        lambda n, seed: in_pace(n, 300, 100, even(20, 80), seed=seed),
    ],
    ids=["one slow", "by turns", "hardly any wait", "alike", "in pace"],
)  # fmt: skip
def test_ranks_that_do_not_meet_are_never_together(n: int, seed: int, ranks: object) -> None:
    assert coupling(ranks(n, seed)).how in ("apart", "not known")  # type: ignore[operator]


@pytest.mark.parametrize("n", [2, 4, 10])
def test_a_rank_that_falls_behind_is_apart(n: int) -> None:
    assert coupling(apart(n, 60, one_slow(100), COMPUTE)).how == "apart"


def test_one_process_waits_for_no_other() -> None:
    assert coupling(together(1, 60, one_slow(100), COMPUTE)).how == "one"


# What a report makes of it


def ten_of_which_one_straggles() -> Ranks:
    return together(10, 30, one_slow(60, rank=2), COMPUTE)


def test_what_one_rank_waits_is_lost_by_all() -> None:
    ranks = ten_of_which_one_straggles()
    measures = measure(ranks.run())
    stall, mean = measures.stall_fraction, measures.mean_stall
    assert stall.value == pytest.approx(ranks.lost, rel=0.02)
    assert mean.value == pytest.approx(ranks.mean, rel=0.02)
    assert 0.6 < ranks.lost < 0.8
    assert ranks.mean < 0.1
    assert sum(measures.wait_parts.values()) == pytest.approx(measures.training.data_wait_s)
    assert [row.rank for row in measures.ranks if row.lost_s] == [2]
    report = report_of(measures)
    assert report.verdict.level == "highly"
    told = f"the job lost {stall.value:.0%} to rank 2's data wait, mean over ranks {mean.value:.0%}"
    assert told.replace("%", " %") in report.verdict.sentence
    wall = {part.key: part.share for part in report.wall}
    assert wall["compute"] == pytest.approx(1 - ranks.lost, abs=0.02)
    assert [limit.state for limit in limits(report, max_stall=0.1)] == ["passed"]


def test_the_ranks_that_wait_by_turns_hold_up_all_in_turn() -> None:
    ranks = together(8, 120, now_and_then(20), COMPUTE)
    measures = measure(ranks.run())
    assert measures.stall_fraction.value == pytest.approx(ranks.lost, rel=0.02)
    assert ranks.lost > 1.5 * ranks.mean
    assert "not the same one in all steps" in report_of(measures).verdict.sentence


def test_ranks_that_do_not_meet_have_their_mean() -> None:
    ranks = apart(10, 40, one_slow(60, rank=2), COMPUTE)
    report = report_of(measure(ranks.run()))
    # The straggler's wall time is longer: a mean of times is no mean of shares.
    assert report.verdict.stall.value == pytest.approx(
        float(ranks.waits[1:].sum() / ranks.walls.sum()), rel=0.03
    )
    assert "ranks do not wait for each other: rank 2 waits 7" in report.verdict.sentence


def too_few_steps() -> Report:
    return report_of(measure(together(10, 6, one_slow(60, rank=2), COMPUTE).run()))


def test_where_it_is_not_known_there_are_bounds_and_the_level_of_the_lower_one() -> None:
    report = too_few_steps()
    assert report.verdict.headline.startswith("At least moderately")
    assert report.verdict.stall.state == "incomplete"
    least, most = report.verdict.stall_least.value, report.verdict.stall_most.value
    assert least is not None
    assert most is not None
    assert report.verdict.stall.value == least
    assert least < 0.1 < 0.6 < most < 0.8
    assert "whether the 10 main processes wait for each other" in report.verdict.sentence
    states = {limit.state for at in (0.1, 0.9) for limit in limits(report, max_stall=at)}
    assert states == {"not measured", "kept"}


def test_a_save_of_one_rank_holds_up_all() -> None:
    ranks = together(4, 40, even(0, 0.001), COMPUTE)
    run = ranks.run()
    # Rank 0 saves in the 20th step, for all of another 300 ms: moved on by hand.
    late = Synthetic()
    at = int(ranks.ends[20].max() * MS)
    for rows in ("processes", "threads", "files", "notes"):
        late.rows[rows] = run.rows[rows]
    late.rows["spans/00000"] = [
        (*row[:7], row[7] + (300 * MS if row[7] >= at else 0), row[8])
        for row in run.rows["spans/00000"]
    ]
    late.rows["processes"] = [
        (*row[:13], row[13] + 400 * MS, *row[14:]) for row in run.rows["processes"]
    ]
    late.span("checkpoint", at, at + 295 * MS, index=0, process=1)
    measures = measure(late)
    assert measures.coupling.how == "together"
    assert measures.training.checkpoint_block_s == pytest.approx(0.295)
    assert sum(measures.checkpoint_parts.values()) == pytest.approx(0.295)
    assert "to rank 0's checkpoints" in report_of(measures).verdict.sentence


def test_a_job_that_was_started_again_counts_each_start_by_itself() -> None:
    first, again = ten_of_which_one_straggles(), ten_of_which_one_straggles()
    later = Ranks(again.waits, again.ends + first.ends.max() + 1000)
    run, more = first.run(), later.run()
    for key, rows in more.rows.items():
        if key in ("processes", "spans/00000", "threads"):
            place = 1 if key == "threads" else 0
            run.rows[key] += [(*r[:place], r[place] + 20, *r[place + 1 :]) for r in rows]
    measures = measure(run)
    assert measures.training.mains == 20
    assert measures.stall_fraction.value == pytest.approx(first.lost, rel=0.02)


def test_every_prepared_number_of_a_bin_adds_up() -> None:
    """What `penstock reduce` counts on: the bins of all ranks are those of each, added."""
    ranks = together(3, 70, now_and_then(20), COMPUTE)
    columns = "generation, size, bin, mains, whole, d_us, hi, lo, stall_ns, most_ns, least_ns"
    parts: dict[tuple[int, ...], list[list[int | None]]] = {}
    for rank in range(3):
        alone = Ranks(ranks.waits[:, [rank]], ranks.ends[:, [rank]]).run()
        for row in rows_of(alone, "step_bins", columns):
            parts.setdefault(row[:3], []).append(list(row[3:]))
    added = []
    for key, found in sorted(parts.items()):
        sums = [sum(v for v in column if v is not None) for column in zip(*found, strict=True)]
        least = [row[7] for row in found if row[7] is not None]
        sums[6] = max(row[6] or 0 for row in found)
        empty = not sums[1]
        added.append((*key, *sums[:2], *([None] * 3 if empty else sums[2:5]), *sums[5:7],
                      min(least) if least else None))  # fmt: skip
    assert rows_of(ranks.run(), "step_bins", columns) == added
