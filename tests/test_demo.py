"""`penstock demo`: a training that waits, the reason, the remedy, the proof."""

import socket
from pathlib import Path

import pytest

from penstock.errors import RunError
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from penstock.trial.demo.story import demonstrate


def test_the_demonstration_waits_says_why_and_is_faster_afterwards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    demonstrate(tmp_path / "d", said.append, lambda *_: None, n_pictures=128, epochs=2)
    seen = {}
    for name in ("before", "after"):
        with open_run(tmp_path / "d" / name) as run:
            seen[name] = measure(run)
    report = report_of(seen["before"])
    assert "waits on remote storage" in report.verdict.headline
    assert "N1" in [finding.rule for finding in report.findings]
    before_s, after_s = (seen[name].training.data_wait_s or 0.0 for name in ("before", "after"))
    assert before_s > 128 * 0.015 * 1.5  # the first batch of each epoch is start-up
    assert after_s < before_s / 2
    # The batches of penstock.feed are a loader's, although no framework is there.
    assert sum(row.batches for row in seen["after"].epochs) == 2 * 4
    printed = capfd.readouterr()
    assert "as fast as A per step" in printed.out
    assert "Recorded in" in printed.err
    assert (tmp_path / "d" / "run.html").read_text().startswith("<!doctype html>")
    assert "as fast as A" in (tmp_path / "d" / "compare.html").read_text()
    port = int(
        next(line for line in said if "127.0.0.1" in line).split("127.0.0.1:")[1].split("/")[0]
    )
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)), "the server still answers"
    with pytest.raises(RunError, match="is not empty"):
        demonstrate(tmp_path / "d", said.append, lambda *_: None)
