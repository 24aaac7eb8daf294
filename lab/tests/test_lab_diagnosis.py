"""The judge of `bench diagnosis`: what counts as right, as not judged and as confidently wrong."""

from pathlib import Path

import pytest
from test_lab_studies import bench

from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of
from penstock_lab import diagnosed, diagnosed_drishti, diagnosed_traceml, diagnosis
from slowtier import needs_fuse
from synthetic import MS, Synthetic

STEP = 100 * MS


def waiting(wait_ms: float, *, op: str = "read", is_loader: bool = True) -> Report:
    """40 steps of 100 ms; in each the loop waits for a fetch with a single call."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start, end = number * STEP, number * STEP + int(wait_ms * MS)
        if is_loader:
            run.fetch(start, end, number, process=1, cpu=0, delay=0)
            run.wait(start, end, number)
        if op == "read":
            run.call("read", start, end, moved=1000)
        elif op == "receive":
            for phase, at in (("first byte", start), ("transfer", (start + end) // 2)):
                run.blocked(
                    "receive", at, at + (end - start) // 2, descriptor="socket:", phase=phase
                )
        run.step(start, start + STEP, number)
    return report_of(measure(run))


def clocks(wait: float) -> dict[str, float]:
    return {"wall_s": 4.0, "wait_s": 4.0 * wait, "save_s": 0.0}


def test_a_report_that_agrees_with_the_clocks_is_right() -> None:
    row = diagnosis.judged(waiting(60), clocks(0.6), "storage")
    assert (row["is_judged"], row["is_level"], row["is_cause"], row["is_wrong"]) == (1, 1, 1, 0)
    assert row["off"] == pytest.approx(0, abs=0.02)


def test_a_wrong_level_is_confidently_wrong() -> None:
    row = diagnosis.judged(waiting(1), clocks(0.6), "storage")
    assert (row["is_judged"], row["is_level"], row["is_wrong"]) == (1, 0, 1)


def test_a_wrong_cause_is_confidently_wrong() -> None:
    row = diagnosis.judged(waiting(60), clocks(0.6), "decode")
    assert (row["is_level"], row["is_cause"], row["is_wrong"]) == (1, 0, 1)


def test_a_cause_that_is_left_open_is_not_right_and_not_wrong() -> None:
    row = diagnosis.judged(waiting(60, op=""), clocks(0.6), "storage")
    assert (row["is_cause"], row["is_wrong"]) == (0, 0)


def test_a_report_that_does_not_judge_is_not_wrong() -> None:
    row = diagnosis.judged(waiting(0, op="", is_loader=False), clocks(0.9), "storage")
    assert (row["is_judged"], row["is_level"], row["is_wrong"]) == (0, None, 0)
    assert row["told"] is None


def unfed(stretch_ms: float) -> Report:
    """Steps of 100 ms without a known loader, possibly with a data wait."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start = number * STEP
        run.span("input stretch", start, start + int(stretch_ms * MS), index=0, a=1, b=MS)
        run.step(start, start + STEP, number)
    return report_of(measure(run))


@pytest.mark.parametrize(("share", "is_level"), [(0.01, 1), (0.12, 1), (0.5, 0)])
def test_an_upper_bound_that_is_moderate_is_a_judgement(share: float, is_level: int) -> None:
    row = diagnosis.judged(unfed(15), clocks(share), "none")
    assert (row["is_judged"], row["is_bound"], row["is_level"]) == (1, 1, is_level)
    assert row["is_wrong"] == 1 - is_level


def test_the_scorecard_tells_known_loaders_from_others() -> None:
    row = {"loader": "DataLoader", "off": 0.03, "is_judged": 1, "is_bound": 0, "is_level": 1}
    row |= {"is_cause": None, "is_wrong": 0, "is_harmless": 1, "place": "disk", "fault": "none"}
    lines = diagnosis._scorecard([row, row | {"loader": "pipe"}])
    assert "known loaders: 0 of 1 within 2 points, the largest difference 3.0" in lines
    assert "other loaders: 1 of 1 within 10 points, the largest difference 3.0" in lines


def test_time_without_a_cpu_is_a_cause_where_the_job_measured_as_much() -> None:
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start = number * STEP
        run.fetch(start, start + 60 * MS, number, process=1, cpu=10 * MS, delay=45 * MS)
        run.wait(start, start + 60 * MS, number)
        run.step(start, start + STEP, number)
    report = report_of(measure(run))
    for delay_s, is_cause in ((8.0, 1), (1.0, 0)):
        row = diagnosis.judged(report, clocks(0.6) | {"delay_s": delay_s}, "storage")
        assert (row["cause"], row["is_cause"], row["is_wrong"]) == (
            "not scheduled", is_cause, 1 - is_cause,
        )  # fmt: skip


def test_the_network_is_the_cause_of_a_remote_job() -> None:
    row = diagnosis.judged(waiting(60, op="receive"), clocks(0.6), "remote")
    assert (row["is_cause"], row["cause"]) == (1, "network")


@pytest.mark.parametrize(("share", "right"), [(0.04, True), (0.06, True), (0.09, False)])
def test_a_level_is_right_as_near_to_its_limit_as_clocks_can_tell(
    share: float, right: bool
) -> None:
    assert diagnosis.judged(waiting(4), clocks(share), "storage")["is_level"] == int(right)


def test_twenty_jobs_are_the_slice_of_ci() -> None:
    cases = diagnosis.cases_of(diagnosis.DiagnosisSettings(scale="ci"))
    assert len(cases) == 20
    assert {case["loader"] for case in cases} == set(diagnosis.LOADERS)


def test_the_whole_study_has_every_loader_with_every_fault() -> None:
    cases = diagnosis.cases_of(diagnosis.DiagnosisSettings(scale="small"))
    assert len(cases) * diagnosis.DiagnosisSettings().repeats >= 120
    assert len({tuple(case.values()) for case in cases}) == len(cases)


# --- TraceML on the same jobs ---------------------------------------------------------------------


def summary(status: str, **evidence: float) -> dict[str, object]:
    return {"version": "0.5.0", "primary_diagnosis": {"status": status, "evidence": evidence}}


def by_traceml(issues: dict[str, object], truth: float) -> dict[str, object]:
    clocks = {"wall_s": 10.0, "wait_s": 10 * truth, "save_s": 0.0}
    return diagnosed_traceml.verdict_of(issues, clocks, diagnosis._levels(truth))


def test_traceml_is_held_to_the_wait_for_input_of_the_job() -> None:
    row = by_traceml(summary("INPUT-BOUND", input_wait_ms=60.0, step_time_ms=100.0), 0.58)
    assert row["traceml_is_judged"] == row["traceml_is_level"] == 1
    assert row["traceml_off"] == pytest.approx(0.02)
    wrong = by_traceml(summary("BALANCED", input_wait_ms=2.0, step_time_ms=100.0), 0.58)
    assert (wrong["traceml_is_judged"], wrong["traceml_is_level"]) == (1, 0)


def test_traceml_does_not_judge_what_it_did_not_time() -> None:
    row = by_traceml(summary("INSUFFICIENT STEP-TIME DATA", step_time_ms=100.0), 0.58)
    assert row["traceml_is_judged"] == 0
    assert row["traceml_is_level"] is row["traceml_off"] is None
    card = diagnosed_traceml.scorecard(
        [row, by_traceml(summary("INPUT-BOUND", input_wait_ms=60.0, step_time_ms=100.0), 0.6)]
    )
    assert card == [
        "TraceML 0.5.0, 2 jobs: judged 1, level of the input wait right 1 of 1, difference to the "
        "job's clocks: median 0.0 points; it names no cause"
    ]
    assert diagnosed_traceml.scorecard([{"truth": 0.5}]) == []


# --- Drishti on the jobs' Darshan logs ------------------------------------------------------------


def by_drishti(codes: str, *, waits_for_storage: bool, fault: str = "none") -> dict[str, object]:
    issues = {"version": "0.8", "codes": codes.split()}
    row = diagnosed_drishti.verdict_of(issues, waits_for_storage=waits_for_storage)
    return row | {"fault": fault}


def test_drishti_is_held_to_its_critical_issues() -> None:
    """P02, P04 and P14 are no critical insights."""
    row = by_drishti("P02 P04 P05 P11 P14", waits_for_storage=True)
    assert (row["drishti_says"], row["drishti_about"]) == ("P05 P11", "read")
    assert row["drishti_is_storage"] == 1
    assert by_drishti("P02 P06 P14", waits_for_storage=True)["drishti_is_storage"] == 0
    assert by_drishti("P17", waits_for_storage=True)["drishti_about"] == "metadata"


def test_an_issue_that_every_job_has_is_seen_in_the_scorecard() -> None:
    card = diagnosed_drishti.scorecard([
        by_drishti("P05", waits_for_storage=True, fault="listing"),
        by_drishti("P05", waits_for_storage=False),
        by_drishti("", waits_for_storage=False),
    ])  # fmt: skip
    assert card == [
        "Drishti 0.8, 3 jobs, from Darshan logs that Penstock exports: it reports no wait; it "
        "lists a critical issue about reads or metadata in 1 of 1 jobs that wait for storage and "
        "in 1 of 2 that do not; it names metadata in 0 of 1 jobs that wait for listings"
    ]
    assert diagnosed_drishti.scorecard([{"truth": 0.5}]) == []


def test_drishtis_codes_are_read_from_its_table(tmp_path: Path) -> None:
    program = tmp_path / "drishti"
    program.write_text(
        "#!/bin/sh\nwhile [ $# -gt 1 ]; do shift; done\n"
        "printf 'JOB,P05,P17\\r\\n7,True,False\\r\\n' > \"${1%.darshan}.csv\"\n"
    )
    program.chmod(0o700)
    log = tmp_path / "job.darshan"
    assert diagnosed_drishti.issues(str(program), log)["codes"] == ["P05"]
    program.write_text("#!/bin/sh\necho Unable to open .darshan file.\nexit 66\n")
    issues = diagnosed_drishti.issues(str(program), log)
    row = diagnosed_drishti.verdict_of(issues, waits_for_storage=True)
    assert (row["drishti_says"], row["drishti_is_storage"]) == (
        "Unable to open .darshan file.", None,
    )  # fmt: skip
    card = diagnosed_drishti.scorecard([row])
    assert card[0].endswith("0 of 0 that do not; it did not read the logs of 1 more")


def test_an_item_that_is_looked_for_is_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "item").write_bytes(b"data")
    with diagnosed._item("listing") as item:
        assert item(str(tmp_path / "item")) == b"data"


# --- the study itself -----------------------------------------------------------------------------


@needs_fuse
@pytest.mark.experiment(study="diagnosis")
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_job_of_the_slice_is_told_what_is_false(tmp_path: Path) -> None:
    """On any machine; the number of judged jobs depends on other load."""
    pytest.importorskip("torch", reason="pip install 'penstock[torch]'")
    result = bench(tmp_path, "diagnosis", "--yes")
    jobs = result["points"]
    assert len(jobs) == 20
    wrong = [(job["factors"], job["values"]) for job in jobs if job["values"]["is_wrong"]]
    assert wrong == []
    judged = [job for job in jobs if job["values"]["is_judged"]]
    assert len(judged) >= 10
    waiting = [job for job in judged if job["factors"]["fault"] == "remote"]
    assert all(job["values"]["told"] > 0.2 for job in waiting)
    assert waiting
