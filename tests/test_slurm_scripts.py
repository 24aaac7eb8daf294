"""The task prolog and the epilog of contrib/slurm, with the variables that Slurm sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import PENSTOCK
from penstock.explain import summary
from penstock.runs.run import open_run

SCRIPTS = Path(__file__).parent.parent / "contrib" / "slurm"
HOST = os.uname().nodename


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a task; slurm.conf's scripts find their settings through it."""
    settings = tmp_path / "penstock.conf"
    settings.write_text(
        f"RUNS={tmp_path}/runs\nSUMMARIES={tmp_path}/kept\nPARTITIONS=gpu,long\nBUDGET=10MB\n"
        f"PENSTOCK={PENSTOCK}\n"
    )
    return {
        "PATH": os.environ["PATH"],
        "PENSTOCK_SLURM_CONF": str(settings),
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_JOB_USER": "ann",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_JOB_ACCOUNT": "physics",
    }


def script(name: str, environ: dict[str, str]) -> tuple[str, str]:
    finished = subprocess.run(
        ["sh", SCRIPTS / name], env=environ, capture_output=True, text=True, check=True
    )
    return finished.stdout, finished.stderr


def task(environ: dict[str, str], work: Path) -> None:
    """Run a task as Slurm does: its prolog's exports, then the program, which knows no Penstock."""
    exports, said = script("task-prolog.sh", environ)
    assert said == ""
    lines = [line.removeprefix("export ") for line in exports.splitlines()]
    assert all(line.startswith("export ") for line in exports.splitlines())
    variables = dict(line.split("=", 1) for line in lines)
    code = "for _ in range(10): open('data', 'rb', buffering=0).read(4096)"
    subprocess.run([sys.executable, "-c", code], env=environ | variables, cwd=work, check=True)


def test_a_job_is_recorded_reported_and_kept_as_a_summary(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "data").write_bytes(bytes(4096))
    for rank in ("0", "1"):  # two tasks of a step share the run of the node
        task(environ | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}, tmp_path)
    folder = tmp_path / "runs" / f"4711.0.{HOST}"
    assert folder.stat().st_mode & 0o777 == 0o700
    with open_run(folder) as run:
        query = "select sum(moved_bytes) from events where op = 'read' and path like '%/data'"
        ((read_bytes,),) = run.sql(query)
    assert read_bytes == 2 * 10 * 4096
    assert script("epilog.sh", environ) == ("", "")
    one = summary.read(tmp_path / "kept" / f"4711.0.{HOST}{summary.SUFFIX}")
    assert (one.run, one.job, one.partition, one.account) == (
        folder.name, "4711", "gpu", "physics",
    )  # fmt: skip
    assert folder.exists()
    told = subprocess.run(
        [PENSTOCK, "runs", tmp_path / "kept"], capture_output=True, text=True, check=True
    )
    assert "1 run" in told.stdout


def test_a_site_may_remove_the_runs(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "data").write_bytes(bytes(4096))
    task(environ, tmp_path)
    with open(environ["PENSTOCK_SLURM_CONF"], "a") as settings:
        settings.write("REMOVE=yes\n")
    script("epilog.sh", environ)
    assert not any((tmp_path / "runs").iterdir())
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_other_partitions_are_not_recorded(tmp_path: Path, environ: dict[str, str]) -> None:
    assert script("task-prolog.sh", environ | {"SLURM_JOB_PARTITION": "cpu"}) == ("", "")
    assert not (tmp_path / "runs").exists()


def test_a_prolog_that_cannot_record_says_why_and_lets_the_task_run(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "runs").write_text("a file")
    exports, said = script("task-prolog.sh", environ)
    assert exports == ""
    assert said.startswith("penstock: not recorded: ")
    assert script("task-prolog.sh", environ | {"SLURM_JOB_ID": "../x"})[0] == ""
    gone = environ | {"PENSTOCK_SLURM_CONF": str(tmp_path / "absent")}
    finished = subprocess.run(["bash", SCRIPTS / "task-prolog.sh"], env=gone, capture_output=True)
    assert (finished.returncode, finished.stdout) == (0, b"")


def test_a_hostile_run_is_named_and_the_others_are_kept(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "data").write_bytes(bytes(4096))
    task(environ, tmp_path)
    forged = tmp_path / "runs" / f"4711.9.{HOST}"
    forged.mkdir()
    (forged / summary.NAME).symlink_to("/etc/shadow")
    (tmp_path / "runs" / f"4711.8.{HOST}").symlink_to("/etc")
    _, said = script("epilog.sh", environ)
    assert f"4711.9.{HOST}: no summary" in said
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [
        f"4711.0.{HOST}{summary.SUFFIX}"
    ]
