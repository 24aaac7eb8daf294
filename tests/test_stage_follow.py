"""`penstock run --fill`: what a run reads is copied while it runs, and what that does to reads."""

import json
import math
import os
import random
import statistics
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.errors import RunError, TierError
from penstock.explain.measures import Filling, measure
from penstock.explain.report import report_of
from penstock.places import registry
from penstock.places.registry import Tier
from penstock.runs.run import open_run
from penstock.safe.checksums import sealed_json
from penstock.stage.fill import FillStopped, Journal, fill, fill_following
from penstock.stage.follow import Following
from penstock.stage.held import evict, verify
from penstock.stage.manifest import TierPlace
from penstock.stage.source import WantedFile
from penstock.views import terminal

READER = """
import os, time
import penstock
def copies():
    # On a busy machine the first copy may come after the reading.
    return open(AWAITED).read().count("checksum") if os.path.exists(AWAITED) else 0
for epoch in range(EPOCHS):
    while AWAITED and epoch == EPOCHS - 1 and copies() < FILES:
        time.sleep(0.1)
    for number in range(FILES):
        with penstock.step(number):
            with open(f"data/{number}.bin", "rb", buffering=0) as file:
                assert len(file.read()) == 20_000 + number
            time.sleep(PAUSE)
open("out.bin", "wb").write(b"written by the job")
"""


def program(files: int, epochs: int, pause_s: float, awaited: Path | None = None) -> str:
    """awaited: a manifest that has all copies before the last epoch begins."""
    return (
        READER.replace("FILES", str(files))
        .replace("EPOCHS", str(epochs))
        .replace("AWAITED", repr(awaited and str(awaited)))
        .replace("PAUSE", str(pause_s))
    )


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    (tmp_path / "tier").mkdir()
    return registry.add("fast", tmp_path / "tier")


@pytest.fixture
def files(work: Path) -> dict[str, bytes]:
    (work / "data").mkdir()
    made = {}
    for number in range(40):
        path = work / "data" / f"{number}.bin"
        path.write_bytes(os.urandom(20_000 + number))
        made[str(path)] = path.read_bytes()
    return made


def copies(tier: Tier) -> dict[str, bytes]:
    place = TierPlace(tier)
    return {one.source: place.copy_path(one).read_bytes() for one in place.entries().values()}


def test_a_run_that_is_filled_meanwhile_reads_the_copies_in_its_later_epochs(
    recorded: Callable[..., Any], files: dict[str, bytes], tier: Tier
) -> None:
    source = program(40, 4, 0.02, TierPlace(tier).manifest)
    run = recorded(source, options=["--fill", "fast", "--fill-limit", "50MB/s"])
    assert copies(tier) == files  # nothing of the program's own, no library, nothing that it wrote
    assert not verify(tier).corrupted
    served = {row.outcome: row.opens for row in measure(run).staged}
    # The first epoch reads the originals; of the last, files of which copies have come.
    assert 20 <= served["served"] <= 120
    rows = {row.filling: row for row in measure(run).filling}
    assert rows["copying"].copied_bytes == sum(map(len, files.values()))
    assert not list(TierPlace(tier).parts.iterdir())


def test_the_end_of_a_filling_says_what_is_staged_and_what_is_not(
    files: dict[str, bytes], tier: Tier
) -> None:
    # 40 files of 20 kB; the next looks of a job that is killed then tell no more.
    told = [WantedFile(path) for path in files]
    looks = iter([told[:30], told[30:]])

    def is_over() -> bool:
        if len(copies(tier)) == 30:
            raise KeyboardInterrupt
        return False

    with pytest.raises(FillStopped) as stopped:
        fill_following(tier, lambda: next(looks, []), is_over, limit_bps=50e6)
    assert (stopped.value.copied, stopped.value.left) == (30, 10)
    assert stopped.value.copied_bytes == sum(len(files[one.path]) for one in told[:30])

    evict(tier)

    def ended() -> None:
        raise KeyboardInterrupt

    with pytest.raises(FillStopped) as stopped:
        fill(tier, told, limit_bps=50e6, ready=ended)
    assert (stopped.value.copied, stopped.value.left) == (0, 40)


def test_a_filling_that_is_stopped_says_that_the_tier_held_no_more(
    files: dict[str, bytes], tier: Tier
) -> None:
    small = registry.add("fast", tier.path, 30 * 20_480)
    told = [WantedFile(path) for path in files]
    looks, rounds = iter([told[:20], told[20:35], told[35:]]), iter([False, False, False])

    def is_over() -> bool:
        try:
            return next(rounds)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(FillStopped) as stopped:
        fill_following(small, lambda: next(looks, []), is_over, limit_bps=50e6)
    assert (stopped.value.copied, stopped.value.left) == (30, 10)
    (note,) = stopped.value.notes  # one of all rounds
    assert "10 files left out: fast holds no more" in note


@pytest.mark.parametrize(
    ("ends", "log", "sentence"),
    [
        ("exit 2", "may start\npenstock: fast: full after 70 files", "failed: fast: full after 70"),
        ("exit 2", "may start\n", "failed: penstock stage status fast"),
        ("exit 2", None, "is not there; penstock stage status fast"),
        ("kill -9 $$", "may start\n", "was killed; penstock stage status fast"),
    ],
)
def test_a_filling_that_ended_badly_is_said_even_to_who_wants_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: str, log: str | None, sentence: str
) -> None:
    from penstock.cli.run_tiers import end_filling

    if log is not None:
        (tmp_path / "fill.log").write_text(log)
    filling = subprocess.Popen(["sh", "-c", ends])
    filling.wait()
    end_filling(filling, tmp_path / "fill.log", "fast", is_quiet=True)
    said = capsys.readouterr().err
    assert said.startswith("penstock: the filling of fast ")
    assert sentence in said
    assert said.count("\n") == 1


def test_a_job_of_an_instant_shows_what_filling_did(recorded: Callable[..., Any]) -> None:
    pytest.importorskip("rich", reason="the terminal view: an extra")
    run = recorded("print()")
    # The program began in the middle of the second stretch: the first is of no call of it.  What
    # was copied is of all of the second, so its time is too; what came after the end, of none.
    before = [run.start_unix_ns - 9_000_000, run.start_unix_ns - 1_000_000, 0, False]
    first = [run.start_unix_ns - 1_000_000, run.start_unix_ns + 1_000_000, 5000, True]
    ((end,),) = run.sql("SELECT max(end_ns) FROM processes")
    paused = [run.start_unix_ns + end - 2_000_000, run.start_unix_ns + end + 10**12, 0, False]
    windows = [before, first, paused]
    windows.append([paused[1], paused[1] + 10**9, 700, True])
    told = {"version": 1, "tier": "fast", "limit_bps": 1e6, "windows": windows}
    (run.folder / "fill.json").write_text(json.dumps(told))
    with open_run(run.folder) as again:
        measures = measure(again)
        said = terminal.render(report_of(measures))
        assert again.sql("SELECT from_ns, to_ns FROM fills")[0] == (-1_000_000, 1_000_000)
    assert {row.filling: row.seconds for row in measures.filling} == {
        "copying": pytest.approx(0.002),
        "paused": pytest.approx(0.002),
    }
    assert "Filling a tier meanwhile" in said
    assert "5.00 kB" in said
    assert "Only slower compares the two" in " ".join(said.split())


def test_a_short_job_is_told_that_its_filling_ended_with_it(
    files: dict[str, bytes], tier: Tier, tmp_path: Path
) -> None:
    said = subprocess.run(
        [PENSTOCK, "run", "-o", "run", "--fill", "fast", "sha256sum", *files],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "penstock: the filling of fast ended with the program: " in said.stderr
    assert " which stay on fast; " in said.stderr
    assert "interrupted" not in (tmp_path / "run" / "fill.txt").read_text()


def test_what_cannot_be_filled_is_told_and_the_program_runs(
    recorded_command: Callable[..., Any], files: dict[str, bytes]
) -> None:
    run = recorded_command(["sha256sum", "data/1.bin"], options=["--fill", "none-such"])
    assert run.sql("SELECT count(*) FROM events WHERE op_group = 'read'")[0][0] > 0


def test_without_a_limit_that_is_known_nothing_is_filled_and_the_program_runs(
    files: dict[str, bytes], tier: Tier, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()  # one that was never recorded
    (tmp_path / "run" / "manifest.json").write_text("{")
    ended = {
        "data": "give --fill-limit 50MB/s",
        "nowhere": "no run, plan, folder or file is there",
        str(tmp_path / "run"): "nothing is filled: ",
    }
    fill_from, (path, data) = ["--fill", "fast", "--fill-from"], next(iter(files.items()))
    for source, sentence in ended.items():
        said = subprocess.run(
            [PENSTOCK, "run", "-q", *fill_from, source, "cat", path],
            cwd=tmp_path / "work", capture_output=True, timeout=240,
        )  # fmt: skip
        assert (said.returncode, said.stdout) == (0, data)
        assert sentence in said.stderr.decode()
        assert "nothing is filled" in said.stderr.decode()
        assert said.stderr.count(b"\n") == 1


def test_following_tells_each_data_file_once_with_the_time_in_its_calls(
    recorded: Callable[..., Any], files: dict[str, bytes]
) -> None:
    run = recorded(program(40, 2, 0.0))
    seen = Following(run.folder)
    found = seen.look()
    assert {one.path for one in found} == set(files)
    told = dict(
        run.sql(
            "SELECT f.path, sum(e.duration_ns) / 1e9 FROM events e JOIN files f ON f.file = e.file"
            " WHERE e.layer IN ('posix', 'stdio') AND e.op_group IN ('read', 'open')"
            " GROUP BY f.path"
        )
    )
    for one in found:
        last = f"data/{Path(one.path).name}"
        name = next(path for path in told if path == last or path.endswith(f"/{last}"))
        assert one.gain_s == pytest.approx(told[name], rel=0.02)
    assert seen.read_bytes == 2 * sum(map(len, files.values()))
    assert seen.look() == []
    assert not seen.is_over
    seen.look()
    assert seen.is_over


def test_time_in_calls_of_several_readers_is_shared_as_a_step_loop_waits_for_one(
    recorded: Callable[..., Any], files: dict[str, bytes]
) -> None:
    run = recorded(
        """
        import os
        for child in range(2):
            if not os.fork():
                for number in range(child, 40, 2):
                    open(f"data/{number}.bin", "rb").read()
                os._exit(0)
            os.wait()
        """
    )
    found = Following(run.folder).look()
    ((all_s,),) = run.sql(
        "SELECT sum(e.duration_ns) / 1e9 FROM events e JOIN files f ON f.file = e.file"
        " WHERE e.layer IN ('posix', 'stdio') AND e.op_group IN ('read', 'open')"
        " AND f.path LIKE '%data/%.bin'"
    )
    assert len(found) == 40
    assert sum(one.gain_s for one in found) == pytest.approx(all_s / 2, rel=0.02)


def test_less_than_a_megabyte_a_second_is_refused(tier: Tier) -> None:
    with pytest.raises(TierError, match="1MB/s or more"):
        fill_following(tier, list, lambda: True, limit_bps=1000)


def test_a_journal_holds_every_byte_in_stretches_that_do_not_overlap(
    files: dict[str, bytes], tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.stage import fill as filling

    monkeypatch.setattr(filling, "COPYING_S", (0.02, 0.05))
    monkeypatch.setattr(filling, "PAUSE_S", (0.01, 0.02))
    journal = Journal(tmp_path / "fill.json", "fast", 4e6)
    fill(tier, [WantedFile(path) for path in files], limit_bps=4e6, journal=journal)
    told = json.loads((tmp_path / "fill.json").read_text())
    windows = told["windows"]
    assert (told["tier"], told["limit_bps"]) == ("fast", 4e6)
    assert sum(row[2] for row in windows if row[3]) == sum(map(len, files.values()))
    assert all(row[2] == 0 for row in windows if not row[3])
    assert all(before[1] <= after[0] for before, after in pairwise(windows))
    assert {row[3] for row in windows} == {True, False}
    assert copies(tier) == files


@pytest.mark.parametrize("end", [KeyboardInterrupt, TierError])
def test_a_journal_ends_with_the_stretch_in_which_the_filling_ended(
    files: dict[str, bytes], tier: Tier, tmp_path: Path, end: type[BaseException]
) -> None:
    def progress(done: int, total: int) -> None:
        if done:
            raise end

    journal = Journal(tmp_path / "fill.json", "fast", 1e6)
    told = [WantedFile(path) for path in files]
    with pytest.raises((FillStopped, TierError)):
        fill(tier, told, limit_bps=1e6, journal=journal, progress=progress)
    *_, last = json.loads((tmp_path / "fill.json").read_text())["windows"]
    assert last[3]
    assert last[2] >= max(1, sum(map(len, copies(tier).values())))


def test_a_filling_that_was_killed_is_said_to_be_told_in_part(
    recorded: Callable[..., Any], files: dict[str, bytes], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "fill.json", "fast", 1e6)
    journal.add(1, 2, 3, True)
    killed = json.loads(journal.path.read_text())
    journal.end()
    ended = json.loads(journal.path.read_text())
    run = recorded(program(5, 1, 0.01))
    start, end = run.start_unix_ns, run.sql("SELECT max(end_ns) FROM processes").fetchall()[0][0]

    def gaps(told: dict[str, Any], to_ns: int) -> list[str]:
        windows = [
            [start, start + to_ns // 2, 100, True],
            [start + to_ns // 2, start + to_ns, 0, False],
        ]
        (run.folder / "fill.json").write_text(sealed_json({**told, "windows": windows}))
        with open_run(run.folder) as again:
            report = report_of(measure(again))
        return [gap.why for gap in report.gaps if gap.what == "filling of a tier"]

    (why,) = gaps(killed, end // 2)
    assert why.startswith("killed before the run's end")
    assert gaps(ended, end // 2) == []
    assert gaps(killed, end + 1) == []  # the run had ended before


def test_a_journal_of_a_run_that_was_followed_ends_with_its_last_pause(
    files: dict[str, bytes], tier: Tier, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "fill.json", "fast", 50e6)
    looks, rounds = iter([[WantedFile(path) for path in files]]), iter([False, True])
    fill_following(
        tier, lambda: next(looks, []), lambda: next(rounds), limit_bps=50e6, journal=journal
    )
    *_, copying, pause = json.loads((tmp_path / "fill.json").read_text())["windows"]
    assert (copying[3], pause[3], copying[1]) == (True, False, pause[0])
    assert pause[1] - pause[0] > 400_000_000  # what it waits before it looks again


def test_the_comparison_is_that_of_the_reads_in_each_stretch(
    recorded: Callable[..., Any], files: dict[str, bytes]
) -> None:
    """The query against the same arithmetic in plain Python, over windows made up afterwards."""
    run = recorded(program(40, 25, 0.001))
    folder, start = run.folder, run.start_unix_ns
    rows = run.sql(
        "SELECT e.start_ns, e.duration_ns, e.moved_bytes, e.file FROM events e JOIN files f ON"
        " f.file = e.file WHERE e.layer = 'posix' AND e.op_group = 'read' AND e.moved_bytes > 0"
        " AND f.path_class = 'data' AND f.kind = 'regular' ORDER BY 1"
    )
    chance, at, windows, is_copying = random.Random(1), rows[0][0] - 10, [], False
    while at < rows[-1][0]:
        until = at + chance.randrange(250_000_000, 500_000_000)
        windows.append([start + at, start + until, 1000 if is_copying else 0, is_copying])
        at, is_copying = until, not is_copying
    told = {"version": 1, "tier": "fast", "limit_bps": 1e6, "windows": windows}
    (folder / "fill.json").write_text(json.dumps(told))
    with open_run(folder) as again:
        found = {row.filling: row for row in measure(again).filling}
    taken: dict[tuple[int, bool, bool], list[float]] = {}
    seen: set[int] = set()  # each file is read in one go: what is read again are the same bytes
    for start_ns, duration_ns, moved, file in rows:
        is_again = file in seen
        seen.add(file)
        for first, last, _, copying in windows:
            guard = 0 if copying else 200_000_000
            if first + guard <= start + start_ns < last:
                key = int(math.log2(moved)), is_again, copying
                taken.setdefault(key, []).append(duration_ns / 1e9)
    kinds = {
        (size, is_again)
        for size, is_again, _ in taken
        if min(len(taken.get((size, is_again, copying), ())) for copying in (True, False)) >= 5
    }
    beside = sum(sum(taken[*kind, True]) for kind in kinds)
    alone = sum(len(taken[*kind, True]) * statistics.mean(taken[*kind, False]) for kind in kinds)
    one: Filling = found["copying"]
    assert one.reads == sum(len(found) for (*_, copying), found in taken.items() if copying)
    assert one.copied_bytes == 1000 * sum(row[3] for row in windows)
    assert one.slower == pytest.approx(beside / alone - 1, rel=1e-6)
    assert one.slower_error is not None
    assert one.slower_error > 0
    assert found["paused"].slower is None


@pytest.mark.parametrize("slower", [0.0, 0.1])
def test_reads_from_memory_in_a_later_epoch_are_no_sign_of_harm_or_of_help(slower: float) -> None:
    # 1,200 files in 5 ms each, then again from memory in 0.1 ms; the copying is at work in half of
    # the first epoch and in nearly all of the second.
    import duckdb

    from penstock.explain.questions import query

    ms = 1_000_000
    reads, at = [], 0
    for epoch, step in ((0, 10 * ms), (1, ms)):
        for file in range(1200):
            is_copying = file % 200 >= 100 if epoch == 0 else file >= 240
            took = (5 * ms if epoch == 0 else ms // 10) * (1 + slower * is_copying)
            reads.append((at, int(took * (0.9 + 0.2 * (file % 2))), file, is_copying))
            at += step
    windows: list[list[Any]] = []
    for start, _, _, is_copying in reads:
        if not windows or windows[-1][2] != is_copying:
            windows.append([start, 0, is_copying])
        windows[-1][1] = start + ms
    with duckdb.connect() as engine:
        engine.execute(
            "CREATE TABLE events (start_ns BIGINT, duration_ns BIGINT, file BIGINT, moved_bytes"
            " BIGINT DEFAULT 100000, offset_bytes BIGINT DEFAULT 0, layer TEXT DEFAULT 'posix',"
            " op_group TEXT DEFAULT 'read');"
            "CREATE TABLE files AS SELECT range AS file, 'data' AS path_class, 'regular' AS kind,"
            " NULL AS served_from FROM range(1200);"
            "CREATE TABLE fills (from_ns BIGINT, to_ns BIGINT, is_copying BOOLEAN, is_cut BOOLEAN,"
            " copied_bytes BIGINT DEFAULT 0);"
            "CREATE TABLE waits (start_ns BIGINT, end_ns BIGINT, in_wall BOOLEAN);"
            "CREATE TABLE mains AS SELECT 1 AS process;"
            "CREATE TABLE processes AS SELECT CAST(NULL AS BIGINT) AS end_ns"
        )
        engine.executemany(
            "INSERT INTO events (start_ns, duration_ns, file) VALUES (?, ?, ?)",
            [row[:3] for row in reads],
        )
        engine.executemany(
            "INSERT INTO fills (from_ns, to_ns, is_copying) VALUES (?, ?, ?)", windows
        )
        rows = engine.execute(query("filling")).fetchall()
        names = [column[0] for column in engine.description or ()]
    found = dict(zip(names, rows[0], strict=True))
    assert found["filling"] == "copying"
    assert found["slower"] == pytest.approx(slower, abs=0.003)
    assert found["slower_error"] < 0.02


@pytest.mark.parametrize(
    "text", ["{", '{"windows": [[1, 2, 3]]}', '{"tier": 1, "limit_bps": 1, "windows": [[1,2,3,4]]}']
)
def test_a_damaged_journal_is_said_in_a_sentence(
    recorded: Callable[..., Any], work: Path, text: str
) -> None:
    run = recorded("open('data', 'w').close()")
    (run.folder / "fill.json").write_text(text)
    with pytest.raises(RunError, match=r"fill\.json: .*remove it"):
        open_run(run.folder)
