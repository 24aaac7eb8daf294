"""What the report says of a Checkpointer's saves, against counts made without it."""

import json
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.measures import CheckpointerLife, TieredSave, measure
from penstock.explain.report import report_of
from penstock.views import html, terminal
from synthetic import MS, Synthetic

S = 1000 * MS
UNIX = 1_795_340_592 * S


@dataclass
class Known:
    """A save, as a test made it; ns since 1970."""

    number: int
    begin: int
    durable: int | None
    outcome: str
    lost: float | None


def noted(turn: int, life: int, save: Known, is_begun: bool) -> str:
    """As Checkpointer._note writes it."""
    durable_s = None if save.durable is None or is_begun else (save.durable - save.begin) / S
    times = [0.25, 0.125, None if is_begun else 0.5, durable_s, None if is_begun else save.lost]
    told = " ".join("-" if one is None else f"{one:.6f}" for one in [*times, None])
    outcome = "good" if is_begun else save.outcome
    facts = f"{turn} {life} {save.number} {10 * save.number} {save.begin} {outcome}"
    return f"{facts} {int(save.number == 0)} 4096 {told} {mode_of(save) or ''}".rstrip()


def mode_of(save: Known) -> str | None:
    """None: of a log from before it was noted."""
    return ["background", "blocking", None][save.number % 3]


def backlog_of(save: Known, saves: list[Known]) -> int:
    """Counted one by one: good ones before it of which none newer was durable, nor they."""
    count = 0
    for other in saves:
        if other.outcome != "good" or other.begin >= save.begin:
            continue
        newer = [one.durable for one in saves if one.begin > other.begin and one.durable]
        gone = other.durable or min(newer, default=None)
        count += gone is None or gone >= save.begin
    return count


def risk_of(save: Known, saves: list[Known], life: int) -> float | None:
    if save.durable is None:
        return None
    before = [one.begin for one in saves if one.durable and one.durable < save.durable]
    return (save.durable - max(before, default=life)) / S


def a_life(chance: random.Random, begin: int) -> list[Known]:
    saves, at = [], begin
    for number in range(chance.randrange(12)):
        at += chance.randrange(1, 20) * S + chance.randrange(1000)
        outcome = chance.choice(["good"] * 6 + ["failed", "skipped"])
        is_durable = outcome == "good" and chance.random() < 0.7
        durable = at + chance.randrange(1, 90) * S + number if is_durable else None
        lost = chance.choice([None, number + 0.5]) if outcome == "good" else None
        saves.append(Known(number, at, durable, outcome, lost))
    return saves


@pytest.mark.parametrize("seed", range(4))
def test_backlog_and_risk_are_what_counting_one_by_one_gives(seed: int) -> None:
    chance = random.Random(seed)
    run, expected, lives = Synthetic(), [], []
    for process in (1, 2, 3):
        run.process(process, end=3600 * S, rank=process % 2)
        for turn in range(2):
            life = UNIX + process * S + turn * 2000 * S
            saves = a_life(chance, life)
            rank = 1 if process == 3 else 0
            facts = {"life": life, "rank": rank, "fast": f"/fast/{process}", "slow": "s3://b/run"}
            notes = [("checkpointer", json.dumps(facts))]
            end = life + 1000 * S
            notes.append(("checkpointer", json.dumps({"life": life, "end_unix_ns": end})))
            rows = [(save, is_begun) for is_begun in (True, False) for save in saves]
            notes += [("save", noted(n, life, *row)) for n, row in enumerate(rows)]
            chance.shuffle(notes)
            for key, said in notes:
                run.note(key, said, process=process)
            if rank:
                continue
            safe = max((one.begin for one in saves if one.durable), default=life)
            risks = [risk_of(one, saves, life) for one in saves]
            backlogs = [backlog_of(one, saves) for one in saves]
            lost = [one.lost for one in saves if one.lost is not None]
            waits = [(one.durable - one.begin) / S for one in saves if one.durable]
            lives.append((life, CheckpointerLife(
                process, f"/fast/{process}", "s3://b/run", len(saves),
                sum(one.outcome == "good" for one in saves), 0.25 * len(saves),
                sum(lost) if lost else None, len(lost),
                pytest.approx(sum(waits) / len(waits)) if waits else None,
                pytest.approx(max(waits)) if waits else None, max(backlogs, default=0),
                pytest.approx(max(risk for risk in risks if risk is not None))
                if waits else None,
                (end - safe) / S,
            )))  # fmt: skip
            expected += [
                (one.begin, TieredSave(
                    process, 10 * one.number, one.outcome, mode_of(one), 4096, 0.25, 0.125,
                    one.lost, None, 0.5,
                    pytest.approx((one.durable - one.begin) / S) if one.durable else None,
                    backlog, pytest.approx(risk, abs=1e-5) if risk is not None else None,
                ))
                for one, backlog, risk in zip(saves, backlogs, risks, strict=True)
            ]  # fmt: skip
    run.note("checkpointer", "{no JSON")
    run.note("checkpointer", "[1]")
    run.note("save", "not a save")
    run.note("save", "")
    found = measure(run)
    assert list(found.tiered_saves) == [one for _, one in sorted(expected, key=lambda row: row[0])]
    assert list(found.checkpointers) == [one for _, one in sorted(lives, key=lambda row: row[0])]
    assert not [one for one in found.blind_spots if one.key in ("save", "checkpointer")]


PROGRAM = """
    import dataclasses, json, os, signal, sys, time
    import numpy as np, penstock
    from penstock.save.training.checkpointer import Checkpointer, Keep
    fast, slow, is_killed = sys.argv[1], sys.argv[2], sys.argv[3] == "killed"
    state, seen = {"x": np.zeros(200_000)}, []
    began = [time.time()]
    ckpt = Checkpointer(fast, slow, keep=Keep(last=9))
    began.append(time.time())
    for step in range(36):
        with penstock.step():
            time.sleep(0.005)
        ckpt.tick()
        if step % 12 == 8:
            time.sleep(0.3)  # what is durable is so by either clock
            called, before = time.time(), time.perf_counter()
            waiting = sum(not row["durable"].done() for row in seen)
            handle = ckpt.save(step, state)
            row = {"step": step, "called": called, "block": time.perf_counter() - before,
                   "waiting": waiting, "durable": handle.durable}
            handle.durable.add_done_callback(
                lambda done, row=row: row.update(arrived=time.time()) if not done.exception() else 0
            )
            seen.append(row)
            if step < 30:
                handle.durable.result(60)
    ended = [time.time()]
    if is_killed:
        handle.local.result(60)
    else:
        ckpt.close()
    ended.append(time.time())
    rows = [{key: value for key, value in row.items() if key != "durable"} for row in seen]
    with open("told.json", "w") as file:
        json.dump({"rows": rows, "saves": [dataclasses.asdict(save) for save in ckpt.saves],
                   "began": began, "ended": ended}, file)
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_run_s_report_has_what_its_program_saw_of_its_saves(
    recorded: Callable[..., Any], tmp_path: Path, work: Path, end: str
) -> None:
    status = {"closed": 0, "killed": -9}[end]
    run = recorded(
        textwrap.dedent(PROGRAM), args=[tmp_path / "fast", tmp_path / "slow", end], status=status
    )
    told = json.loads((work / "told.json").read_text())
    found = measure(run)
    [whole] = found.checkpointers
    assert (whole.fast, whole.slow) == (str(tmp_path / "fast"), str(tmp_path / "slow"))
    assert (whole.saves, whole.good) == (3, 3)
    assert len(found.tiered_saves) == 3
    safe = told["began"]  # two moments between which it was
    for save, row, own in zip(found.tiered_saves, told["rows"], told["saves"], strict=True):
        assert (save.step, save.outcome, save.backlog) == (row["step"], "good", row["waiting"])
        assert save.mode == ("blocking" if own["is_blocking"] else "background")
        assert save.blocked_s == pytest.approx(own["block_s"], abs=2e-6)
        assert 0 < save.blocked_s <= row["block"]
        durable_s = own["durable_s"]
        if durable_s is None:  # the killed one's last
            assert (save.durable_s, save.risk_s, end) == (None, None, "killed")
            continue
        assert save.durable_s == pytest.approx(durable_s, abs=2e-6)
        arrived = own["begin_unix_s"] + durable_s
        assert row["called"] < arrived < row["arrived"] + 5  # two clocks, and a busy machine
        assert arrived - safe[1] - 0.01 <= save.risk_s <= arrived - safe[0] + 0.01
        safe = [own["begin_unix_s"]] * 2
        costs = [own["lost_s"], own["lost_to_durable_s"]]
        if end == "closed":
            assert [save.lost_s, save.lost_to_durable_s] == [
                None if one is None else pytest.approx(one, abs=2e-6) for one in costs
            ]
    assert found.tiered_saves[0].lost_s is not None
    last = [moment - safe[0] for moment in told["ended"]]
    slack_s = 0.1 if end == "closed" else 30.0  # when `penstock run` saw it end
    assert last[0] - 0.1 <= whole.end_risk_s <= last[1] + slack_s
    report = report_of(found)
    text = terminal.render(report)
    assert "Saves of the Checkpointer" in text
    assert "at risk at the end" in text
    assert "lost time" in text
    page = html.render(report)
    assert "Saves of the Checkpointer" in page
