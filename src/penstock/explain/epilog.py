"""The end of a Slurm job on a node: report runs as the owner, and keep summaries.

The epilog runs as root, and a run folder belongs to a user.  Root opens only the summary, within
bounds.  The names of user and job come from the folder's owner and from Slurm.
"""

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.explain import summary
from penstock.safe import drafts

__all__ = ["kept_summaries"]

REPORT_S = 600.0  # limit of a report: Slurm drains a node if the epilog takes too long


def kept_summaries(
    runs: Path, environ: Mapping[str, str], summaries: Path, is_kept: bool
) -> Iterator[tuple[Path, str]]:
    """Report the runs of the job on the local node.

    Yield each run with "", or with the reason why the summary is missing.

    summaries: the folder that takes JOB.STEP.HOST.summary.json.  is_kept: False: remove the runs.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return
    summaries.mkdir(parents=True, exist_ok=True)
    problem = ""
    for folder in sorted(runs.glob(f"{job}.*.{socket.gethostname()}")):
        try:
            owner = os.lstat(folder)
            if not folder.is_dir() or folder.is_symlink():
                continue
            problem = _reported(folder, owner.st_uid, owner.st_gid, environ)
            run_summary = replace(
                summary.read(folder / summary.NAME),
                run=folder.name,
                user=_name_of(owner.st_uid),
                job=job,
                partition=environ.get("SLURM_JOB_PARTITION", ""),
                account=environ.get("SLURM_JOB_ACCOUNT", ""),
            )
            drafts.write(
                summaries / f"{folder.name}{summary.SUFFIX}", summary.to_json(run_summary) + "\n"
            )
            if not is_kept:
                _as_owner(["rm", "-rf", "--", str(folder)], owner.st_uid, owner.st_gid, environ)
            problem = ""
        except (OSError, PenstockError, subprocess.TimeoutExpired) as error:
            problem = problem or str(error)
        yield folder, problem


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _reported(folder: Path, uid: int, gid: int, environ: Mapping[str, str]) -> str:
    """Report a run, to write the summary; return the error's last line, or ""."""
    command = [sys.executable, "-m", "penstock", "report", str(folder)]
    finished = _as_owner(command, uid, gid, environ)
    return finished.stderr.strip().rpartition("\n")[2] if finished.returncode else ""


def _as_owner(
    command: Sequence[str], uid: int, gid: int, environ: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command as the owner, with no other groups, and with PATH, LANG and TZ as the only
    environment variables."""
    user: dict[str, Any] = {}
    if os.geteuid() == 0 and uid != 0:
        user = {"user": uid, "group": gid, "extra_groups": []}
    kept = {key: value for key, value in environ.items() if key in ("PATH", "LANG", "TZ")}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=kept,
        cwd="/",
        timeout=REPORT_S,
        check=False,
        **user,
    )
