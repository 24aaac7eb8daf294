"""Slurm itself: its controller, a daemon and munge on loopback, while the tests run.

What srun and sbatch tell a task is theirs here, not written down by us.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fixtures import PENSTOCK
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from test_container import WHY_NO_CONTAINERS
from test_ranks import RANKS, each_rank_is_exact, job_in, unlaunched

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
PLACES = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
READY_S = 60.0

# As many processors as ranks, whatever the machine has; a node that was gone comes back by itself.
CONFIGURATION = """
ClusterName=penstock
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={ranks} RealMemory=100 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _why_no_slurm() -> str:
    if os.geteuid():
        return "Slurm's daemons want to be root"
    lacks = [name for name in PROGRAMS if not shutil.which(name, path=PLACES)]
    return f"no {lacks[0]} here: apt install slurm-wlm munge" if lacks else ""


WHY_NO_SLURM = _why_no_slurm()
pytestmark = [pytest.mark.skipif(bool(WHY_NO_SLURM), reason=WHY_NO_SLURM), pytest.mark.slow]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The environment in which srun and sbatch find it."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o600)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=os.uname().nodename.partition(".")[0],
            controller=_free_port(),
            daemon=_free_port(),
            folder=folder,
            ranks=RANKS,
        )
    )
    environment = unlaunched() | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PLACES}
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={folder}/key",
         f"--socket={folder}/munge", f"--pid-file={folder}/munged.pid",
         f"--seed-file={folder}/seed", f"--log-file={folder}/munged.log"],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        with open(folder / "log", "wb") as log:
            for words in commands:
                # A test that is killed leaves no daemon behind.
                command = ["setpriv", "--pdeathsig", "KILL", *words]
                started.append(
                    subprocess.Popen(
                        command, env=environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
                if words[0] == "munged":
                    _await(lambda: (folder / "munge").exists(), folder)
        _await(lambda: _said(["sinfo", "--noheader", "-o", "%T"], environment) == "idle", folder)
        yield environment
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(is_so: Callable[[], bool], folder: Path) -> None:
    until_s = time.monotonic() + READY_S
    while not is_so():
        if time.monotonic() > until_s:
            pytest.skip(f"Slurm does not start here: {(folder / 'log').read_text()[-300:]}")
        time.sleep(0.1)


def _said(command: list[str], environment: Mapping[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    return job_in(tmp_path)


def finished(
    command: list[str | Path], environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, command)), env=environment, cwd=folder, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


SRUN: list[str | Path] = ["srun", "-n", str(RANKS)]


def test_srun_starts_as_many_penstocks_as_ranks_and_they_make_one_run(
    slurm: Mapping[str, str], job: list[str], tmp_path: Path
) -> None:
    done = finished([*SRUN, PENSTOCK, "run", *job], slurm, tmp_path)
    assert done.stderr.count("Recorded in ") == 1, done.stderr
    (folder,) = (tmp_path / "penstock-runs").iterdir()
    assert folder.name.startswith("program-slurm-")
    with open_run(folder) as run:
        each_rank_is_exact(run)


def test_penstock_run_around_srun_records_the_ranks_of_this_node(
    slurm: Mapping[str, str], job: list[str], tmp_path: Path
) -> None:
    finished([PENSTOCK, "run", "-q", "-o", tmp_path / "run", *SRUN, *job], slurm, tmp_path)
    with open_run(tmp_path / "run") as run:
        each_rank_is_exact(run)


def test_a_second_step_of_a_job_is_a_run_of_its_own(
    slurm: Mapping[str, str], job: list[str], tmp_path: Path
) -> None:
    one = f"srun -n {RANKS} {PENSTOCK} run -q {' '.join(job)}"
    finished(["salloc", "-n", str(RANKS), "sh", "-c", f"{one} && {one}"], slurm, tmp_path)
    folders = sorted((tmp_path / "penstock-runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        with open_run(folder) as run:
            each_rank_is_exact(run)


def test_the_script_of_a_job_of_four_tasks_is_none_of_them(
    slurm: Mapping[str, str], tmp_path: Path
) -> None:
    """It runs once, and has the variables of the allocation; no rank of it is missing."""
    script = tmp_path / "script"
    program = "import penstock\nwith penstock.step(): open('/etc/hostname').read()"
    script.write_text(
        f'#!/bin/sh\n#SBATCH -n {RANKS}\n{PENSTOCK} run -q -o run {sys.executable} -c "{program}"\n'
    )
    finished(["sbatch", "--wait", "-o", tmp_path / "out", script], slurm, tmp_path)
    with open_run(tmp_path / "run") as run:
        rows = run.sql("SELECT DISTINCT rank, world_size FROM processes").fetchall()
        gaps = [gap.what for gap in report_of(measure(run)).gaps]
    assert rows == [(None, None)]
    assert not any("rank" in what for what in gaps)


@pytest.mark.skipif(bool(WHY_NO_CONTAINERS), reason=WHY_NO_CONTAINERS)
def test_srun_in_front_of_a_container_makes_one_run(
    slurm: Mapping[str, str], job: list[str], tmp_path: Path
) -> None:
    """As docs/containers.md has it for Apptainer; bubblewrap makes the container here."""
    box = (
        f"srun -n {RANKS} bwrap --ro-bind / / --dev /dev --proc /proc --bind {tmp_path} {tmp_path}"
    )
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", "--container", box, *job]
    finished(command, slurm, tmp_path)
    with open_run(tmp_path / "run") as run:
        each_rank_is_exact(run)
