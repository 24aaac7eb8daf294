"""Programs with libraries that also stand between them and libc: a sanitizer, another clock."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.runs.run import open_run

KINDS = ["address", "undefined", "thread"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_with_a_sanitizer_is_recorded(
    kind: str, workload: Callable[..., Path], recorded_command: Callable[..., Any]
) -> None:
    run = recorded_command([workload("sanitized", f"-fsanitize={kind}")])
    counts = dict(run.sql("SELECT op, calls FROM counters WHERE path LIKE '%/sanitized'"))
    assert counts == {"open": 1, "pread": 100, "close": 1}


def test_a_sanitizer_reports_its_findings_under_the_recorder(
    workload: Callable[..., Path], tmp_path: Path
) -> None:
    program = workload("sanitized", "-fsanitize=address")
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", program, "more"]
    environ = os.environ | {"ASAN_OPTIONS": "exitcode=77"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    assert done.returncode == 77  # the user's options hold
    assert "heap-buffer-overflow" in done.stderr


STARTS = """\
import os, subprocess, sys
import penstock
with penstock.record(sys.argv[1]):
    for given in ({}, {"ASAN_OPTIONS": "detect_leaks=0"}, dict(os.environ)):
        subprocess.run([sys.argv[2]], env=given, check=True)
"""


def test_a_program_with_a_sanitizer_that_a_window_starts_is_recorded(
    workload: Callable[..., Path], tmp_path: Path
) -> None:
    program = workload("sanitized", "-fsanitize=address")
    command = [sys.executable, "-c", STARTS, tmp_path / "run", program]
    subprocess.run(command, check=True, timeout=240)
    with open_run(tmp_path / "run") as run:
        calls = run.sql("SELECT calls FROM counters WHERE op = 'pread' AND path LIKE '%/sanitized'")
    assert calls == [(100,)] * 3


def frozen(workload: Callable[..., Path]) -> str:
    return str(workload("frozen_clock", "-shared", "-fPIC"))


def test_times_are_the_kernels_where_a_program_sees_another_clock(
    workload: Callable[..., Path], tmp_path: Path, work: Path
) -> None:
    """The launcher has the kernel's clock here, the program another one."""
    program = workload("sanitized")
    shell = f"LD_PRELOAD=$LD_PRELOAD:{frozen(workload)} {program} && {program}"
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", "sh", "-c", shell]
    subprocess.run(command, check=True, timeout=240, cwd=work)
    with open_run(tmp_path / "run") as run:
        rows = run.sql("SELECT start_ns, end_ns FROM processes WHERE executable LIKE '%/sanitized'")
    assert len(rows) == 2
    for start_ns, end_ns in rows:  # since the start of the first process
        assert 0 < start_ns < end_ns < 240e9


@pytest.mark.skipif(
    not sysconfig.get_config_var("HAVE_CLOCK_GETTIME"), reason="Python reads another clock"
)
def test_times_are_the_kernels_where_the_launcher_sees_another_clock(
    workload: Callable[..., Path], tmp_path: Path, work: Path
) -> None:
    """Nothing waits for ever, and what is noted beside the program is on the logs' clock."""
    asked = "import time; print(time.monotonic_ns(), time.monotonic_ns())"
    environ = os.environ | {"LD_PRELOAD": frozen(workload)}
    told = subprocess.run([sys.executable, "-c", asked], env=environ, capture_output=True)
    assert len(set(told.stdout.split())) == 1, "the clock that Python sees stands still"
    before = int(Path("/proc/uptime").read_text().split(".")[0])
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", workload("sanitized")]
    subprocess.run(command, check=True, timeout=240, env=environ, cwd=work)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    (samples,) = (tmp_path / "run").glob("*.system")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    with open_run(tmp_path / "run") as run:
        ((start_ns, end_ns),) = run.sql("SELECT start_ns, end_ns FROM processes")
    assert start_ns == 0 < end_ns < 240e9
    for ns in (facts["end_monotonic_ns"], *(line["ns"] for line in lines[1:])):
        assert abs(ns / 1e9 - before) < 240
