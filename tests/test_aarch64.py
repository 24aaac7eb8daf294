"""The same program, recorded on x86-64 and, under an emulator, on aarch64."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.runs.run import Run, open_run

ROOT = Path(__file__).parents[1]
COMPILER = "aarch64-linux-gnu-gcc"
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]
KNOWN = {
    ("open", 0): 1,
    ("pread", 500): 5,
    ("fopen", 0): 1,
    ("fread", 50): 1,
    ("fclose", 0): 1,
    ("read", 41): 3,
}


def counted(run: Run) -> dict[tuple[str, int], int]:
    rows = run.sql(
        """
        select op, sum(moved_bytes), count(*) from events
        where parse_filename(path) = 'data' group by op
        """
    )
    return {(op, int(moved)): n for op, moved, n in rows}


def test_the_program_is_recorded_as_known(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    (work / "data").write_bytes(bytes(4096))
    assert counted(recorded_command([workload("both")])) == KNOWN


@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which("qemu-aarch64")),
    reason="needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user (make setup-system)",
)
def test_the_same_is_recorded_on_aarch64(tmp_path: Path) -> None:
    library, program = tmp_path / "librec.so", tmp_path / "both"
    sources = sorted((ROOT / "native").glob("*.c"))
    shared = ["-fPIC", "-shared", "-fexceptions", "-fvisibility=hidden"]
    for command in (
        [*FLAGS, *shared, *sources, "-o", library, "-ldl", "-pthread"],
        [*FLAGS, ROOT / "tests/workloads/both.c", "-o", program, "-ldl"],
    ):
        subprocess.run([COMPILER, *command], check=True)
    (tmp_path / "data").write_bytes(bytes(4096))
    (tmp_path / "run").mkdir()
    variables = ["-E", f"LD_PRELOAD={library}", "-E", f"PENSTOCK_RUN={tmp_path / 'run'}"]
    subprocess.run(
        ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", *variables, program],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "LD_PRELOAD"},
        check=True,
    )
    with open_run(tmp_path / "run") as run:
        assert counted(run) == KNOWN
        assert len(run.sql("select * from processes")) == 2
