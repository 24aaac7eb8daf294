"""Rules on programs of other kinds than they are for, each run and recorded: what they may not say.

What a rule has to find in such a program is here too, where a real one shows it in seconds.
"""

import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.findings import RULES, Check, Finding, judge
from penstock.explain.measures import Measures, measure


def said(run: Any) -> tuple[dict[str, Finding | Check], Measures]:
    measures = measure(run)
    judgement = judge(measures)
    return {one.rule: one for one in (*judgement.findings, *judgement.checks)}, measures


def finds(one: Finding | Check) -> bool:
    return isinstance(one, Finding)


SQLITE = """
    import sqlite3, sys
    import penstock
    base = sqlite3.connect(sys.argv[1], isolation_level=None)
    base.execute("PRAGMA cache_size = 4")  # pages, so that each query reads
    base.execute("PRAGMA journal_mode = WAL")
    for step in range(60):
        with penstock.step():
            rows = base.execute("SELECT length(image) FROM images WHERE id % 60 = ?", (step,))
            assert sum(size for (size,) in rows) == 4 * 9000
            base.execute("BEGIN")
            base.execute("INSERT INTO losses VALUES (?, ?)", (step, 1 / (1 + step)))
            base.execute("COMMIT")
            if step % 20 == 19:
                base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
"""


def test_a_data_base_saves_no_checkpoint_and_is_not_read_again_in_an_epoch(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    """SQLite syncs at each commit, calls the end of its log a checkpoint, and reads its pages anew
    for each query."""
    path = tmp_path / "images.db"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, image BLOB)")
    base.execute("CREATE TABLE losses (step INTEGER, loss REAL)")
    base.executemany("INSERT INTO images VALUES (?, ?)", [(n, bytes(9000)) for n in range(240)])
    base.commit()
    base.close()
    rules, measures = said(recorded(SQLITE, args=[path]))
    assert measures.training.steps == 60
    for rule in ("C1", "C2", "C3"):
        assert not finds(rules[rule]), rules[rule]
    assert measures.training.checkpoint_block_s == 0
    for rule in ("E1", "W1", "X1"):
        assert not finds(rules[rule]), rules[rule]
    # Each query scans the pages: how often an epoch is, nobody knows.
    assert not finds(rules["D12"]), rules["D12"]


SCANNED = """
    import os, sys
    import penstock
    for step in range(12):
        with penstock.step():
            for _ in range(int(sys.argv[2])):
                file = os.open(sys.argv[1], os.O_RDONLY)
                while os.read(file, 1 << 20):
                    pass
                os.close(file)
"""


@pytest.mark.parametrize(("times", "is_found"), [(1, False), (4, True)])
def test_a_file_that_is_read_four_times_a_step_is_read_again_without_a_loader(
    recorded: Callable[..., Any], tmp_path: Path, times: int, is_found: bool
) -> None:
    path = tmp_path / "set.tar"
    path.write_bytes(bytes(16 << 20))
    rules, measures = said(recorded(SCANNED, args=[path, str(times)]))
    one = rules["D12"]
    assert finds(one) is is_found, one
    [row] = [row for row in measures.files if row.path == str(path)]
    told = one.evidence[0] if isinstance(one, Finding) else one.says
    assert f"read {12 * times:.1f}x" in told
    if isinstance(one, Finding):
        assert 0 < (one.gain.value or 0) <= row.time_s
    else:
        assert one.state == "not judged"
    # 16 reads and an empty one a turn: no size is asked for in vain.
    assert not finds(rules["E1"])


FOLLOWED = """
    import os, sys, time
    import penstock
    source = os.open(sys.argv[1], os.O_RDONLY)
    for step in range(40):
        with penstock.step():
            os.read(source, 1000)
            for _ in range(5):  # as `tail -f` does until something is written
                os.pread(source, 4096, 40_000)
"""


def test_a_follower_of_a_file_does_not_ask_at_its_end_for_nothing(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "stream.jsonl"
    path.write_bytes(bytes(40_000))
    rules, measures = said(recorded(FOLLOWED, args=[path]))
    assert (measures.reading.reads, measures.reading.empty_reads) == (240, 200)
    assert not finds(rules["E1"])  # withheld, as no loader is known; and of itself:
    [rule] = [rule for rule in RULES if rule.rule == "E1"]
    assert "83 % of 240 reads are empty, with 1 open of data files" in rule.judges(measures).says


PIPELINE = """
    set -e
    for n in $(seq 20); do cat "$1" | gzip -c | wc -c > /dev/null; done
    yes | head -n 1 > /dev/null
"""


def test_a_pipeline_of_short_programs_is_whole_and_pays_for_starts(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    """`yes` is killed by SIGPIPE, as it is meant to be: its recording is whole."""
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(3000))
    rules, measures = said(recorded_command(["sh", "-c", PIPELINE, "sh", path]))
    cost = rules["X2"]
    assert isinstance(cost, Finding)
    assert f"for its start in {measures.recording.starts} programs" in cost.evidence[0]
    assert measures.recording.starts >= 61
    assert cost.gain.value is None
    assert not finds(rules["X1"]), rules["X1"]
    assert not finds(rules["D12"]), rules["D12"]


def test_an_archive_that_is_listed_five_times_has_no_epochs(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(50):
            member = tmp_path / f"{number}.bin"
            member.write_bytes(bytes(1000))
            tar.add(member, arcname=member.name)
    words = ["sh", "-c", 'for n in 1 2 3 4 5; do tar -xOf "$1" > /dev/null; done', "sh", path]
    rules, _ = said(recorded_command(words))
    one = rules["D12"]
    assert isinstance(one, Check)
    assert one.state == "not judged"
    assert "read 5.00x" in one.says
    assert "no known loader tells" in one.says
    assert not finds(rules["X2"]), "few starts are nothing to count"


MAPPED = """
    import sys, numpy
    import penstock
    data = numpy.memmap(sys.argv[1], "u1", "r")
    for epoch in range(5):
        for step in range(20):
            with penstock.step():
                int(data[step * 100_000 : (step + 1) * 100_000].sum())
"""


def test_a_mapped_array_read_in_five_epochs_is_neither_read_again_nor_saved(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(2_000_000))
    rules, _ = said(recorded(MAPPED, args=[path]))
    for rule in ("D12", "E1", "C1", "W1", "X1"):
        assert not finds(rules[rule]), rules[rule]


SAVING = """
    import os, pickle, sys
    import penstock
    for step in range(10):
        with penstock.step():
            sum(range(20_000))
        with penstock.span("checkpoint"):
            with open(sys.argv[1], "wb", buffering=0) as file:
                for _ in range(8):
                    file.write(bytes(1 << 20))
                os.fsync(file.fileno())
"""


def test_a_save_of_any_program_blocks_its_steps_for_as_long_as_it_took(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    run = recorded(SAVING, args=[tmp_path / "state.bin"])
    rules, _ = said(run)
    one = rules["C1"]
    assert isinstance(one, Finding), one
    [(spans,)] = run.sql("SELECT sum(duration_ns) / 1e9 FROM spans WHERE name = 'checkpoint'")
    assert 0 < (one.gain.value or 0) <= float(spans) * 1.001
    assert "8.39 MB each" in one.evidence[0]


def test_calls_past_the_budget_leave_an_incomplete_recording(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(1000))
    many = """
        import os, sys
        import penstock
        file = os.open(sys.argv[1], os.O_RDONLY)
        for step in range(10):
            with penstock.step():
                for n in range(8000):
                    os.pread(file, 10, n % 900)
    """
    rules, measures = said(recorded(many, args=[path], options=["--budget", "1MiB"]))
    one = rules["X1"]
    assert isinstance(one, Finding)
    assert f"{measures.recording.folded:,} calls past the trace budget" in one.evidence[0]
    assert measures.recording.folded > 0
    assert measures.recording.calls >= 80_000  # counted, though not kept
    assert not finds(said(recorded(many, args=[path]))[0]["X1"])
