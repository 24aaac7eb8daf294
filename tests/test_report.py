"""What is said of a run whose measures are known."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from findings_examples import anywhere, faulting, lmdb_like
from penstock.errors import PenstockError
from penstock.explain.measures import measure
from penstock.explain.report import VERSION, Report, from_json, report_of, show, to_json
from synthetic import Synthetic, training_job

MS = 1_000_000


@pytest.fixture(scope="module")
def waiting() -> Report:
    """A job that waits for its files and for its checkpoints."""
    return report_of(
        measure(training_job(120, compute_ms=25, read_ms=4, decode_ms=1, save_every=40))
    )


def steps_with(wait_ms: int, save_ms: int = 0, group: str = "read", cpu: int = 0) -> Report:
    """Ten steps of 100 ms; each waits for its batch, in calls of that group, and saves."""
    run = Synthetic()
    run.process(1, end=1500 * MS, command="python -u train.py --lr 1")
    run.worker(2, start=0, end=1400 * MS)
    run.wait(0, 10 * MS, 0)
    for step in range(11):
        start = step * 100 * MS
        run.step(start if step else 99 * MS, start + 100 * MS, step)
        if not step:
            continue
        run.wait(start, start + wait_ms * MS, step)
        run.fetch(start, start + wait_ms * MS, step, cpu=cpu * MS, delay=0)
        if group:
            run.call(group, start, start + wait_ms * MS, process=2, moved=1)
        if save_ms:
            run.span("checkpoint", start + 60 * MS, start + (60 + save_ms) * MS, index=step)
            run.call("write", start + 60 * MS, start + (60 + save_ms) * MS, path="/out/a", moved=1)
    return report_of(measure(run))


def test_less_than_a_twentieth_is_not_io_bound() -> None:
    verdict = steps_with(4).verdict
    assert (verdict.level, verdict.bound) == ("not", "I/O")
    assert verdict.headline == "NOT I/O BOUND"
    assert verdict.sentence.startswith("4 % of the training waits on storage")


def test_up_to_a_fifth_is_moderately_io_bound() -> None:
    verdict = steps_with(10).verdict
    assert verdict.headline == "MODERATELY I/O BOUND"


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.0499, "not"), (0.05, "moderately"), (0.20, "moderately"), (0.2001, "highly")],
)
def test_a_level_holds_from_its_limit_to_the_next(share: float, level: str) -> None:
    """5 to 20 % is moderately, both limits included."""
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.worker(2, start=0, end=1400 * MS)
    run.wait(0, 10 * MS, 0)
    run.step(10 * MS, 100 * MS, 0)
    run.wait(100 * MS, 200 * MS, 1)
    run.fetch(100 * MS, 200 * MS, 1, cpu=0, delay=0)
    run.call("read", 100 * MS, 200 * MS, process=2, moved=1)
    run.step(200 * MS, 1010 * MS, 1)
    known = measure(run)
    training = replace(known.training, wall_s=1.0, data_wait_s=share)
    exact = replace(known, training=training, wait_parts={"read": share})
    assert report_of(exact).verdict.level == level


def test_more_than_a_fifth_is_highly_io_bound_and_says_where() -> None:
    verdict = steps_with(12, 15).verdict
    assert verdict.headline == "HIGHLY I/O BOUND"
    assert verdict.sentence == "27 % of the training waits on storage (data 12 %, checkpoint 15 %)"
    assert verdict.max_speedup.value == pytest.approx(1 / (1 - verdict.storage.value), rel=1e-9)


def test_waiting_for_decoding_is_input_bound_and_not_io_bound() -> None:
    verdict = steps_with(40, group="", cpu=40).verdict
    assert verdict.headline == "HIGHLY INPUT BOUND, not I/O bound"
    assert verdict.bound == "input"
    assert "40 % decoding on the CPU" in verdict.sentence
    assert verdict.storage.value == 0


def test_waiting_for_a_processor_is_named() -> None:
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.worker(2, start=0, end=1400 * MS)
    run.step(0, 100 * MS, 0)
    run.wait(100 * MS, 400 * MS, 1)
    run.fetch(100 * MS, 400 * MS, 1, cpu=10 * MS, delay=290 * MS)
    run.step(100 * MS, 1000 * MS, 1)
    verdict = report_of(measure(run)).verdict
    assert "because the loader had no CPU" in verdict.sentence


def test_a_checkpoint_outside_file_calls_is_not_storage() -> None:
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.step(0, 500 * MS, 0)
    run.span("checkpoint", 600 * MS, 900 * MS, index=0)
    run.step(500 * MS, 1000 * MS, 1)
    run.wait(0, MS, 0)
    run.wait(500 * MS, 501 * MS, 1)
    verdict = report_of(measure(run)).verdict
    assert verdict.headline == "Highly checkpoint bound, not I/O bound"  # of 999 ms


def test_a_loop_that_reads_its_data_itself_waits_on_storage_too() -> None:
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.step(0, 500 * MS, 0)
    run.call("read", 100 * MS, 400 * MS, moved=1)
    run.step(500 * MS, 1000 * MS, 1)
    report = report_of(measure(run))
    assert report.verdict.sentence == (
        "30 % of the training waits on storage (the training thread's own calls 30 %); at most "
        "100 %: steps took data from no loader that Penstock knows"
    )


def test_a_run_without_steps_gets_no_verdict_on_its_waiting() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS, command="cp a b")
    run.call("read", 0, 300 * MS, moved=10)
    run.call("fwrite", 400 * MS, 500 * MS, path="/b", moved=10)
    report = report_of(measure(run))
    assert report.verdict.headline == "NO TRAINING STEPS SEEN"
    assert report.verdict.sentence == (
        "1 POSIX call on files took 300 ms, 1 STDIO call 100 ms of 2.00 s, all threads together"
    )
    assert [(fact.key, fact.number.value) for fact in report.stretches] == [
        ("life_s", 2.0),
        ("read_bytes", 10),
        ("written_bytes", 10),
    ]
    assert report.verdict.storage.state == "not measured"
    assert report.wall == ()
    assert report.title == "cp"


def test_a_run_without_file_calls_says_so_in_words() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS, command="true")
    assert report_of(measure(run)).verdict.sentence == "no call on a file was seen in 2.00 s"


def test_layers_are_not_added_in_what_was_read() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    run.file("/lib/x.so", path_class="library")
    run.call("read", 0, MS, moved=10)
    run.call("fread", MS, 2 * MS, moved=30)
    run.call("read", 0, MS, path="/lib/x.so", moved=5000)
    read = next(fact for fact in report_of(measure(run)).stretches if fact.key == "read_bytes")
    assert (read.number.value, read.remark) == (30, "data and output files, by STDIO")


def test_the_bar_is_the_whole_wall_time(waiting: Report) -> None:
    assert sum(segment.share for segment in waiting.wall) == pytest.approx(1)
    wall_s = next(fact.number.value for fact in waiting.stretches if fact.key == "wall_s")
    assert sum(segment.s for segment in waiting.wall) == pytest.approx(wall_s)


def test_the_parts_of_a_wait_are_the_whole_wait(waiting: Report) -> None:
    for parts in (waiting.wait, waiting.first_batch, waiting.checkpoint):
        assert sum(part.share or 0 for part in parts) == pytest.approx(1)


def test_a_folded_run_says_incomplete_where_single_calls_are_needed() -> None:
    run = training_job(40, compute_ms=20)
    run.rows["processes"].clear()
    run.process(1, end=10**11, folded_events=1234)
    run.process(2, end=10**11)
    run.process(3, end=10**11)
    report = report_of(measure(run))
    assert report.verdict.storage.state == "incomplete"
    assert any(gap.what == "1,234 single calls" for gap in report.gaps)
    columns = {column.key: column.state for column in report.table("operations").columns}
    assert columns["calls"] == "measured"
    assert columns["p99_s"] == "incomplete"
    assert report.picture("latencies").state == "incomplete"


def test_page_faults_of_mapped_data_are_not_measured_and_not_zero() -> None:
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.step(0, 500 * MS, 0)
    run.wait(600 * MS, 700 * MS, 1)
    run.step(500 * MS, 1000 * MS, 1)
    run.call("mmap", 0, MS, path="/data/train.mdb", asked=10**9)
    report = report_of(measure(run))
    part = report.wait[-1]
    assert (part.key, part.s, part.state) == ("page fault", None, "not measured")
    (fact,) = report.reading
    assert (fact.key, fact.number.value) == ("mapped_files", 1)


def test_what_the_recorder_cost_is_said_or_said_to_be_unknown() -> None:
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.call("read", 0, MS)
    cost = {fact.key: fact.number for fact in report_of(measure(run)).cost}
    assert cost["attach_s"].value == pytest.approx(0.003)
    assert (cost["event_s"].value, cost["event_s"].state) == (None, "not measured")
    run = Synthetic()
    run.process(1, end=1500 * MS)
    run.call("read", 0, MS)
    run.note("event_cost_ns", "120")
    cost = {fact.key: fact.number for fact in report_of(measure(run)).cost}
    assert (cost["event_s"].value, cost["event_s"].state) == (pytest.approx(1.2e-7), "derived")
    run = Synthetic()  # no call: what one of them costs says nothing
    run.process(1, end=1500 * MS)
    run.note("event_cost_ns", "120")
    facts = {fact.key: fact for fact in report_of(measure(run)).cost}
    assert (facts["event_s"].number.value, facts["event_s"].remark) == (0, "")


def test_a_folder_of_the_user_that_is_called_run_stays_as_it_is() -> None:
    """Commands name the run; a path in them, or in what is fine, is the path that was read."""
    run = lmdb_like(anywhere, "/data/RUN/a RUN-7.lmdb/data.mdb")
    report = report_of(measure(run), "my runs/tuesday")
    (finding,) = [one for one in report.findings if one.rule == "D4"]
    commands = [remedy.command for remedy in finding.remedies]
    assert "penstock feed bench '/data/RUN/a RUN-7.lmdb/data.mdb'" in commands
    assert "penstock whatif 'my runs/tuesday' --tier /dev/shm" in commands
    assert not any("\0" in command for command in commands)
    little = report_of(measure(faulting(0.05, path="/data/RUN/data.mdb")), "tuesday")
    (check,) = [one for one in little.checks if one.rule == "D7"]
    assert "/data/RUN/data.mdb: 150 major" in check.says
    (check,) = [one for one in report.checks if one.rule == "D3"]
    assert check.says.endswith("`penstock ceiling 'my runs/tuesday'` does it")


def test_json_and_back_is_the_same_report(waiting: Report) -> None:
    assert from_json(to_json(waiting)) == waiting
    plain = json.loads(to_json(waiting))
    assert plain["report"] == VERSION == 1
    assert list(plain)[:3] == ["report", "run", "title"]
    assert plain["verdict"]["headline"] == waiting.verdict.headline


def test_a_report_of_another_version_or_shape_is_refused_in_a_sentence(waiting: Report) -> None:
    newer = to_json(replace(waiting, report=VERSION + 1))
    with pytest.raises(PenstockError, match="version 2, known here is 1"):
        from_json(newer)
    for text in ("", "[]", "{}", '{"report": 1}', to_json(waiting).replace("[", "{", 1)):
        with pytest.raises(PenstockError):
            from_json(text)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0, "s", "0 s"),
        (1.2e-7, "s", "120 ns"),
        (0.00208, "s", "2.08 ms"),
        (0.9996, "s", "1.00 s"),
        (59.96, "s", "60.0 s"),
        (754, "s", "12 min 34 s"),
        (659.7, "s", "11 min 0 s"),
        (11520, "s", "3 h 12 min"),
        (0, "B", "0 B"),
        (999, "B", "999 B"),
        (73_200, "B", "73.2 kB"),
        (999_999, "B", "1.00 MB"),
        (1.5e9, "B/s", "1.50 GB/s"),
        (0.0001, "share", "<0.1 %"),
        (0.0934, "share", "9.3 %"),
        (0.213, "share", "21 %"),
        (3000, "count", "3,000"),
        (4.83, "count", "4.83"),
        (1.266, "x", "1.27x"),
        (None, "s", "–"),
        (True, "text", "yes"),
    ],
)
def test_numbers_are_said_in_three_digits(value: float | None, unit: str, said: str) -> None:
    assert show(value, unit) == said


@given(st.floats(0, 1e15), st.sampled_from(["s", "B", "B/s", "share", "count", "x"]))
def test_any_number_can_be_said_shortly(value: float, unit: str) -> None:
    said = show(value, unit)
    assert said
    assert unit in ("count", "x", "share", "s") or len(said) <= 12, said


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("/opt/python3 -u /a/b/train.py", "train.py"),
        ("python -m torch.distributed.run x.py", "torch.distributed.run"),
        ("/usr/bin/dd if=a of=b", "dd"),
        ("python '/a dir/my train.py' x", "my train.py"),
        ("python -c 'print(1)'", "python -c"),
        ("/usr/bin/env -S A=1 python -u train.py", "train.py"),
        ("/usr/bin/env A=1", "env"),
        ("/bin/bash -e jobs/train.sh x", "train.sh"),
        ("sh -ec 'a; b'", "sh -c"),
        ("bash", "bash"),
        ("", "run"),
    ],
)
def test_a_run_is_called_by_its_script(command: str, title: str) -> None:
    run = Synthetic()
    run.process(1, end=MS, command=command, executable="")
    assert report_of(measure(run)).title == title


def test_a_run_without_training_is_called_by_what_its_first_process_became() -> None:
    run = Synthetic()
    run.process(0, end=5 * MS, command="/usr/bin/env python train.py", state="execed")
    run.process(0, start=5 * MS, end=9 * MS, command="python train.py")
    run.process(2, start=7 * MS, end=8 * MS, command="dirname x")
    shown = report_of(measure(run))
    assert (shown.title, shown.command) == ("train.py", "python train.py")


def test_a_run_that_goes_on_or_whose_recording_failed_says_so_in_its_title() -> None:
    for state, words in (("running", "still running"), ("failed", "recording ended early")):
        run = Synthetic()
        run.process(1, end=1000 * MS, command="python train.py", state=state)
        assert words in report_of(measure(run)).subtitle


def test_a_cell_that_was_not_measured_is_no_zero() -> None:
    made = training_job(batches=20, save_every=0)
    measures = measure(made)
    counted = replace(measures.recording, counters_only="counters of a tool", has_events=False)
    report = report_of(replace(measures, recording=counted))
    for table in report.tables:
        for place, column in enumerate(table.columns):
            if column.state == "not measured":
                assert {row[place] for row in table.rows} <= {None}, (table.key, column.key)
    states = {column.key: column.state for column in report.table("directories").columns}
    assert states["blocking_s"] == "not measured"


def test_the_note_tells_only_of_columns_that_are_shown() -> None:
    made = training_job(batches=60, save_every=20)
    assert "Off the step loop" not in report_of(measure(made)).table("checkpoints").note
    made = training_job(batches=60, save_every=20)
    made.span("checkpoint", 4_000_000_000, 4_500_000_000, thread=7, index=9)
    assert "Off the step loop" in report_of(measure(made)).table("checkpoints").note


def test_many_saves_off_the_step_loop_hide_no_checkpoint_of_the_step_loop() -> None:
    made = training_job(120, compute_ms=25, read_ms=4, decode_ms=1, save_every=40)
    n_saves = len(measure(made).checkpoints)
    made = training_job(120, compute_ms=25, read_ms=4, decode_ms=1, save_every=40)
    for number in range(501):  # as a program that makes its data set with torch.save
        start_ns = 4_000_000_000 + number * MS
        made.span("checkpoint", start_ns, start_ns + MS // 2, thread=7, index=1000 + number)
    report = report_of(measure(made))
    fact = next(one for one in report.stretches if one.key == "checkpoint_block_s")
    assert fact.remark == f"{n_saves} checkpoints"
    assert len(measure(made).checkpoints) == 500


def test_a_save_after_the_last_step_is_in_the_picture_of_steps() -> None:
    made = training_job(batches=40, save_every=20)  # the second save is the last thing
    measures = measure(made)
    of_save = {series.key: series.values for series in report_of(measures).picture("steps").series}
    assert sum(bool(value) for value in of_save["checkpoint"]) == 2
    steps = sum(point.step_s * point.steps for point in measures.step_times)
    assert steps == pytest.approx(measures.training.wall_s)


def test_pictures_over_time_end_together() -> None:
    report = report_of(measure(training_job(batches=40)))
    ends = {
        picture.key: picture.x_start + picture.x_step * len(picture.series[0].values)
        for picture in report.pictures
        if picture.kind in ("lines", "lanes")
    }
    longest = max(
        picture.x_step for picture in report.pictures if picture.kind in ("lines", "lanes")
    )
    assert max(ends.values()) - min(ends.values()) < longest, ends
    assert len(ends) > 2


def test_what_a_finding_points_at_is_in_the_report() -> None:
    report = report_of(measure(training_job(compute_ms=40, read_ms=6)), "runs/my run")
    places = {table.key for table in report.tables} | {one.key for one in report.pictures}
    assert {finding.shown for finding in report.findings} <= places
    commands = [remedy.command for one in report.findings for remedy in one.remedies]
    assert "penstock whatif 'runs/my run' --tier /dev/shm" in commands
    assert any("`penstock ceiling 'runs/my run'`" in check.says for check in report.checks)


def test_lanes_are_called_by_what_they_do_and_no_two_alike() -> None:
    run = training_job(20)
    for thread, name in ((7, "pin_memory"), (8, "reader"), (9, "reader")):
        run.rows["threads"].append((thread, 1, 5000 + thread, name, False))
        run.call("read", thread * MS, (thread + 1) * MS, thread=thread, moved=1)
    run.process(9, start=0, end=10**9, command="rsync")
    run.call("write", 0, MS, process=9, moved=1)
    picture = report_of(measure(run)).picture("lanes_time")
    assert [series.label for series in picture.series] == [
        "main",
        "worker 0",
        "worker 1",
        "main, pin_memory",
        "main, reader 5008",
        "main, reader 5009",
        "process 1009",
    ]


def passes(n: int, *, beside: bool = False) -> Synthetic:
    """n passes of two workers each, started anew; beside: a loader of one worker that outlives
    them, which worked in each of them."""
    run = Synthetic()
    now, each = 1000 * MS, 400 * MS
    for number in range(n):
        iterator = 1 + number
        run.span("loader", now, now + each, index=iterator, a=2, b=4)
        for worker in range(2):
            process = 2 + 2 * number + worker
            run.worker(process, start=now, end=now + each, number=worker)
            run.fetch(now, now + 100 * MS, worker, process=process, a=iterator, cpu=MS, delay=0)
            run.call("read", now, now + 50 * MS, process=process, moved=1000)
            run.wait(now + worker * 50 * MS, now + (1 + worker) * 50 * MS, worker, a=iterator)
        run.step(now + 100 * MS, now + each, number)
        now += each
    if beside:
        run.span("loader", 1000 * MS, now, index=90, a=1, b=8)
        run.worker(90, start=1010 * MS, end=now, number=0)
        run.fetch(1010 * MS, 1020 * MS, 0, process=90, a=90, cpu=MS, delay=0)
        run.call("read", 1010 * MS, 1020 * MS, process=90, moved=500)
    run.process(1, end=now + MS)
    return run


def test_workers_that_each_pass_starts_anew_share_a_lane_by_their_number() -> None:
    picture = report_of(measure(passes(20))).picture("lanes_time")
    assert [series.label for series in picture.series] == ["worker 0", "worker 1"]
    for series in picture.series:
        assert sum(value or 0 for value in series.values) == pytest.approx(20 * 0.05, rel=0.01)


def test_workers_of_another_loader_have_lanes_of_their_own() -> None:
    picture = report_of(measure(passes(5, beside=True))).picture("lanes_bytes")
    sums = {one.label: sum(value or 0 for value in one.values) for one in picture.series}
    assert sums == pytest.approx(
        {"worker 0": 5000, "worker 0, loader 2": 500, "worker 1": 5000}, rel=0.01
    )


def test_a_measured_ceiling_is_a_mark_in_the_picture_of_bandwidth() -> None:
    run = training_job(compute_ms=40, read_ms=6)
    run.note("mount", "/scratch\tlustre\tserver:/scratch")
    run.ceiling("/scratch", "read", 1.5e9)
    run.ceiling("/scratch", "write", 0.8e9)
    marks = report_of(measure(run)).picture("bandwidth").marks
    assert [(mark.group, mark.value) for mark in marks] == [("read", 1.5e9), ("write", 0.8e9)]
    assert marks[0].label == "/scratch gives at most 1.50 GB/s"


def test_where_the_end_of_a_killed_process_comes_from_is_said() -> None:
    run = Synthetic()
    run.process(1, end=10_000 * MS, state="killed", reason="by SIGKILL")
    for process in (2, 3):
        run.process(process, end=9_000 * MS, state="killed", reason="when is not known: ...")
    gaps = [(gap.what, gap.state, gap.why) for gap in report_of(measure(run)).gaps]
    seen = "killed: its end is known to a second"
    guessed = "killed: seen until its last event; when it was killed is not known"
    assert gaps[:2] == [("1 process", "incomplete", seen), ("2 processes", "incomplete", guessed)]


def test_the_title_says_that_a_run_was_killed_or_paused() -> None:
    def subtitle(**more: object) -> tuple[str, ...]:
        run = Synthetic()
        run.process(1, end=10_000 * MS, **more)  # type: ignore[arg-type]
        run.worker(2, start=0, end=9000 * MS)
        for batch in range(4):
            run.wait(batch * 1000 * MS, (batch * 1000 + 100) * MS, batch)
            run.step(batch * 1000 * MS, (batch + 1) * 1000 * MS, batch)
        if not more:
            run.span("paused", 5000 * MS, 7500 * MS, kind="window")
        return report_of(measure(run)).subtitle

    assert subtitle(state="killed")[0] == "killed"
    assert "killed" not in subtitle(state="exited", reason="x")
    assert subtitle()[:2] == ("10.0 s in total", "2.50 s of it not recorded")


def test_what_the_recorder_notes_of_cpus_is_nothing_that_is_missing() -> None:
    run = training_job(12)
    run.note("cpus of process", "4\tf\t1.5\t/sys/fs/cgroup/job")
    run.note("cpu quota", "1.5")
    run.note("cpu throttled", "7\t1.25\t/sys/fs/cgroup/job")
    run.note("run-queue delay", "measured")
    said = {spot.key for spot in measure(run).blind_spots}
    assert not said & {"cpus of process", "cpu quota", "cpu throttled", "run-queue delay"}
    run = training_job(12)
    run.note("run-queue delay", "not measured")
    (gap,) = [gap for gap in report_of(measure(run)).gaps if "run-queue delay" in gap.what]
    assert gap.why == "not measured"
