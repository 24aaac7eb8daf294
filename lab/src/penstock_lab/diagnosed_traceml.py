"""TraceML's verdict on a job of `bench diagnosis`: an equal loop, with TraceML's two lines for a
program without a trainer.

TraceML reports the part of a step that waits for input, where TraceML sees the loader, and names no
storage, decoding or network.  So TraceML's level is compared with the waits of the job, and nothing
else.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import RunError
from penstock.explain.verdict import level_of
from penstock_lab import diagnosed, places
from penstock_lab.places import Place
from penstock_lab.study import Row

__all__ = ["scorecard", "trained", "verdict_of", "version_of"]

TIMEOUT_S = 600.0


def trained(
    program: str, place: Place, work: Path, job: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run a job by `traceml run`; return the job's own clocks (s) and TraceML's summary.

    Raises RunError.
    """
    asked, answer, logs = work / "job.json", work / "answer.json", work / "traceml"
    asked.write_text(json.dumps({**job, "by": "traceml"}))
    command = [program, "run", diagnosed.__file__, "--run-name", "job", "--logs-dir", str(logs)]
    command += ["--args", str(asked), str(answer)]
    running = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        if place.group is not None:
            place.group.add(running.pid)
        said, _ = running.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"traceml: did not end in {TIMEOUT_S:.0f} s") from error
    finally:
        places.ended(running)
    try:
        clocks = json.loads(answer.read_text())
        summary = json.loads((logs / "job" / "final_summary.json").read_text())
    except (OSError, ValueError) as error:
        lines = said.strip().splitlines()
        raise RunError(f"traceml: {lines[-1] if lines else error}") from error
    return clocks, {**summary, "version": version_of(program, "traceml-ai")}


def version_of(program: str, package: str) -> str:
    """Return the version of a package in the environment of a program; "": not known."""
    python = Path(program).with_name("python")
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "show", package]
    if not python.exists():
        return ""
    description = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.search(r"^Version: (\S+)", description, re.MULTILINE)
    return match[1] if match else ""


def verdict_of(
    summary: Mapping[str, Any], clocks: Mapping[str, float], right: Collection[str]
) -> Row:
    """Return TraceML's results beside the job's own clocks.

    right: the right levels of the job.  A job is judged where TraceML gives both the length of a
    step and the wait for input.
    """
    diagnosis = summary.get("primary_diagnosis") or {}
    evidence = diagnosis.get("evidence") or {}
    wait_ms, step_ms = evidence.get("input_wait_ms"), evidence.get("step_time_ms")
    truth = clocks["wait_s"] / clocks["wall_s"]
    share = wait_ms / step_ms if wait_ms is not None and step_ms else None
    is_level = None if share is None else int(level_of(share) in right)
    return {
        "traceml": summary.get("version", ""),
        "traceml_says": str(diagnosis.get("status", "")),
        "traceml_truth": truth,
        "traceml_told": share,
        "traceml_off": None if share is None else abs(share - truth),
        "traceml_is_judged": int(share is not None),
        "traceml_is_level": is_level,
    }


def scorecard(rows: Sequence[Row]) -> list[str]:
    """Return TraceML's results on the jobs, in words; nothing without a run of TraceML."""
    rows = [row for row in rows if "traceml" in row]
    if not rows:
        return []
    judged = [row for row in rows if row["traceml_is_judged"]]
    right = sum(row["traceml_is_level"] for row in judged)
    offs = sorted(row["traceml_off"] for row in judged)
    sentence = f"TraceML {rows[0]['traceml']}, {len(rows)} jobs: judged {len(judged)}"
    if judged:
        sentence += f", level of the input wait right {right} of {len(judged)}"
        sentence += (
            f", difference to the job's clocks: median {100 * offs[len(offs) // 2]:.1f} points"
        )
    return [f"{sentence}; it names no cause"]
