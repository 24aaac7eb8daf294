"""Run every example of docs/save.md as written, with tiers of the test for /nvme and /lustre, and
with moto for S3."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from remote import s3_server

__all__ = ["s3_server"]

ROOT = Path(__file__).parents[1]

TRAINING = """
import argparse, os, time, zipfile
parser = argparse.ArgumentParser()
parser.add_argument("--output")
parser.add_argument("--resume", default="")
words = parser.parse_args()
time.sleep(2)  # its imports
os.makedirs(words.output, exist_ok=True)
for step in (1, 2, 3):
    with zipfile.ZipFile(f"{words.output}/step-{step}.pt", "w") as file:
        file.writestr("a/data.pkl", bytes([step]) * 1000)
    time.sleep(0.2)
"""


def examples() -> list[str]:
    """Return the indented blocks of the page, without the parts of lists."""
    text = (ROOT / "docs/save.md").read_text()
    blocks = text.split("\n\n")
    return [
        textwrap.dedent(block) for block in blocks
        if block.startswith("    ") and not block.lstrip().startswith("- ")
    ]  # fmt: skip


def run_in_bash(block: str, folder: Path, environ: dict[str, str]) -> str:
    ended = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, (block, ended.stderr)
    return ended.stdout


# 25 s: trainings, and drains until each checkpoint is still.
@pytest.mark.slow
def test_every_example_of_the_page_runs_as_it_is_written(tmp_path: Path, s3_server: str) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server,
    }
    for folder in ("nvme", "lustre", "nvme/run2"):
        (tmp_path / folder).mkdir()
    made = "import boto3; boto3.client('s3').create_bucket(Bucket='bucket')"
    subprocess.run([sys.executable, "-c", made], env=environ, check=True)
    output = "python train.py --output nvme/run2; python train.py --output lightning_logs/version_0"
    recorded = "penstock run -q -o penstock-runs/train-1 -- python -c pass"
    run_in_bash(f"{output}; {recorded}", tmp_path, environ)
    told = dict[str, str]()
    names: dict[str, Any] = {"step": 9, "buffers": [b"state"]}
    for block in examples():  # all in one folder, in order
        here = block.replace("/nvme", f"{tmp_path}/nvme").replace("/lustre", f"{tmp_path}/lustre")
        if block.startswith("from "):
            exec(here, names)
        elif "lab/benchmarks" not in block:  # tests/test_save_soak.py runs these
            told[block] = run_in_bash(here, tmp_path, environ)
    first = next(iter(told.values()))
    assert first.splitlines()[-1].endswith("run1/step-3.pt"), told
    assert (tmp_path / "lustre/run1/step-3.pt").exists()
    assert names["choice"].step == 3
    assert (tmp_path / "nvme/run1/step-00000009/model.pt").exists()
    assert len(told) >= 4
