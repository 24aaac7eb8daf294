"""Drishti on the jobs of `bench diagnosis`: the critical issues of a job's Darshan log.

The log is the Darshan export of the job's recording, so no job runs a second time.  Drishti reports
no wait and no level: the program lists issues of the access pattern.  So the scorecard counts the
jobs with a critical issue about reads or metadata, and whether the jobs wait for storage.
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock_lab.diagnosed_traceml import version_of
from penstock_lab.study import Row

__all__ = ["ABOUT", "issues", "scorecard", "verdict_of"]

TIMEOUT_S = 300.0

# Drishti's critical (red) insights, by the part of a data wait: drishti/includes/config.py and
# module.py of drishti-io 0.8.
ABOUT = {
    "read": {"P05", "P08", "P11", "P15", "P22", "S01", "M02"},
    "write": {"P06", "P13", "P16", "P21", "M03"},
    "metadata": {"P17"},
    "other": {"P07", "P18", "P19", "M09"},
}


def issues(program: str, log: Path) -> dict[str, Any]:
    """Return Drishti's version and the reported codes of a Darshan log.

    codes: None if Drishti did not read the log; error then has the reason.
    """
    command = [program, "--issues", "--csv", "--export_dir", str(log.parent), str(log)]
    answer: dict[str, Any] = {"version": version_of(program, "drishti-io"), "codes": None}
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if ended.returncode:
            return answer | {
                "error": (ended.stdout.strip() or str(ended.returncode)).splitlines()[-1]
            }
        with log.with_suffix(".csv").open(newline="") as file:
            names, values = list(csv.reader(file))[:2]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return answer | {"error": str(error)}
    codes = [name for name, value in zip(names, values, strict=False) if value == "True"]
    return answer | {"codes": codes}


def verdict_of(answer: Mapping[str, Any], *, waits_for_storage: bool) -> Row:
    """Return the critical issues of a job as columns.

    waits_for_storage: the job waits for file calls or page faults, by its clocks and its fault.
    """
    if answer["codes"] is None:
        return {
            "drishti": answer["version"], "drishti_says": answer["error"], "drishti_about": "",
            "drishti_is_storage": None, "drishti_truth": int(waits_for_storage),
        }  # fmt: skip
    codes = set(answer["codes"])
    about = [part for part, part_codes in ABOUT.items() if codes & part_codes]
    return {
        "drishti": answer["version"],
        "drishti_says": " ".join(sorted(codes & set().union(*ABOUT.values()))),
        "drishti_about": ", ".join(about),
        "drishti_is_storage": int("read" in about or "metadata" in about),
        "drishti_truth": int(waits_for_storage),
    }


def scorecard(rows: Sequence[Row]) -> list[str]:
    """Return Drishti's results on the jobs, in words; nothing without a run of Drishti."""
    given = [row for row in rows if "drishti" in row]
    if not given:
        return []
    rows = [row for row in given if row["drishti_is_storage"] is not None]
    waiting = [row for row in rows if row["drishti_truth"]]
    others = [row for row in rows if not row["drishti_truth"]]
    listed = [row for row in rows if row.get("fault") == "listing" and row["drishti_truth"]]
    version = given[0]["drishti"]
    sentence = (
        f"Drishti {version}, {len(rows)} jobs, from Darshan logs that Penstock exports: "
        f"it reports no wait; it lists a critical issue about reads or metadata in "
        f"{sum(row['drishti_is_storage'] for row in waiting)} of {len(waiting)} jobs that wait for "
        f"storage and in {sum(row['drishti_is_storage'] for row in others)} of {len(others)} that "
        "do not"
    )
    if listed:
        n = sum("metadata" in row["drishti_about"] for row in listed)
        sentence += f"; it names metadata in {n} of {len(listed)} jobs that wait for listings"
    if len(rows) < len(given):
        sentence += f"; it did not read the logs of {len(given) - len(rows)} more"
    return [sentence]
