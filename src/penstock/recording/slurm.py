"""Record jobs of Slurm without a change to the job: variables set by a task prolog.

A task prolog runs as the user before each task; lines "export NAME=VALUE" on standard output change
the task's environment.  All tasks of a step on a node share a run folder, JOB.STEP.HOST.
"""

import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import RunError
from penstock.recording import control, launch, session

__all__ = ["folder_of", "is_wanted", "prolog"]

WAIT_S = 5.0  # time for the first task of the node to make the folder
NAME = re.compile(r"[0-9]{1,12}")


def is_wanted(environ: Mapping[str, str], users: str, partitions: str) -> bool:
    """Return True if the job belongs to the given users and partitions.

    Names are separated by commas; "": all.
    """
    return all(
        not names or environ.get(key) in names.split(",")
        for key, names in (("SLURM_JOB_USER", users), ("SLURM_JOB_PARTITION", partitions))
    )


def folder_of(runs: Path, environ: Mapping[str, str]) -> Path:
    """Return the run folder of a task's step on this node.

    Raises RunError: the process is no task of Slurm.
    """
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "batch")
    if not NAME.fullmatch(job) or not re.fullmatch(r"[\w-]{1,20}", step):
        raise RunError("no task of Slurm: SLURM_JOB_ID is not set")
    return runs / f"{job}.{step}.{socket.gethostname()}"


def prolog(runs: Path, environ: Mapping[str, str], budget: int, version: str) -> list[str]:
    """Make or join the run folder of a task; return the lines for Slurm.  Raises RunError."""
    folder = folder_of(runs, environ).absolute()
    if is_first := _claimed(folder):
        command = [environ.get("SLURM_JOB_NAME") or "job"]
        launch.write_facts(folder, session.facts_of(command, version))
        control.make(folder, control.RECORD)
    until_s = time.monotonic() + WAIT_S
    while not is_first and not (folder / control.NAME).exists():
        if time.monotonic() > until_s:
            raise RunError(f"{folder}: the first task of the node has not made the run")
        time.sleep(0.02)
    made = launch.environment(folder, budget, environ, None, None)
    return [f"export {key}={value}" for key, value in made.items() if environ.get(key) != value]


def _claimed(folder: Path) -> bool:
    """Make the folder, private to the user; return False if another task has made the folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(0o700)
    except FileExistsError:
        return False
    except OSError as error:
        raise RunError(f"{folder}: {error.strerror}") from error
    return True
