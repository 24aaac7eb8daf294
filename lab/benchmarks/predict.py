"""Compare predictions of `penstock predict` with the runs themselves: jobs × slow tiers.

Each job is recorded on a local folder, predicted for each tier (measured there by replay), and then
run on that tier.  Prints a row for each pair: seconds of its loops as recorded locally, predicted,
and measured on the tier; writes all rows with --json FILE.

    python lab/benchmarks/predict.py [--json FILE] [--jobs PATTERN]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.runs.run import open_run
from penstock.trial.predict import Scenario, costs_on, predict
from penstock_lab import tier as slow_tiers

FILES, FILE_BYTES = 960, 100_000
# Milliseconds: of decoding an item, of a step.
LOADS = {"light": (0.3, 10.0), "decoding": (3.0, 10.0)}
TIERS: dict[str, dict[str, float]] = {
    "volume": {"bandwidth": 200e6, "iops": 2000.0},
    "1 ms": {"latency_s": 0.001},
    "10 ms": {"latency_s": 0.010},
}

JOB = """
import glob, os, sys, time, torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
folder, kind = sys.argv[1:3]
workers, decode_s, step_s = int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])
files = sorted(glob.glob(folder + "/*.bin"))

class Items(Dataset):
    descriptor = None
    def __len__(self):
        return len(files)
    def __getitem__(self, place):
        if kind == "files":
            with open(files[place], "rb") as file:
                data = file.read()
        else:
            if self.descriptor is None:
                self.descriptor = os.open(folder + "/all", os.O_RDONLY)
            data = os.pread(self.descriptor, 65536, place * 65536)
        end = time.thread_time() + decode_s
        while time.thread_time() < end:
            sum(range(100))
        return torch.frombuffer(bytearray(data[:1024]), dtype=torch.uint8).float()

if __name__ == "__main__":
    model = torch.nn.Linear(1024, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(Items(), 8, shuffle=True, num_workers=workers):
        time.sleep(step_s)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


def _data(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:05}.bin").write_bytes(os.urandom(FILE_BYTES))
    (folder / "all").write_bytes(os.urandom(FILES * 65536))
    (folder / "tried").mkdir()


def _recorded(work: Path, run: Path, folder: str, job: tuple[str, int, str]) -> None:
    kind, workers, load = job
    decode_ms, step_ms = LOADS[load]
    arguments = [folder, kind, workers, decode_ms / 1e3, step_ms / 1e3]
    subprocess.run(
        [sys.executable, "-m", "penstock", "run", "-q", "-o", str(run), "--", sys.executable,
         str(work / "job.py"), *map(str, arguments)],
        check=True,
    )  # fmt: skip


def _pairs(pattern: str, work: Path) -> list[dict[str, Any]]:
    (work / "job.py").write_text(JOB)
    data = work / "data"
    _data(data)
    jobs = [
        (kind, workers, load)
        for kind in ("files", "records") for workers in (0, 2, 4) for load in LOADS
        if fnmatch.fnmatch(f"{kind}, {workers} workers, {load}", pattern)
    ]  # fmt: skip
    rows = []
    for number, job in enumerate(jobs):
        local = work / f"local-{number}"
        _recorded(work, local, str(data), job)
        for name, speed in TIERS.items():
            with slow_tiers.slow(data, **speed) as tier, open_run(local) as run:  # type: ignore[arg-type]
                costs = costs_on(run, Path(tier.path) / "tried", max(1, job[1]), for_s=10)
                prediction = predict(run, Scenario(costs))
                there = work / f"there-{number}-{name}".replace(" ", "-")
                _recorded(work, there, tier.path, job)
            with open_run(there) as run:
                truth = predict(run, Scenario()).recorded
            rows.append(
                {
                    "job": f"{job[0]}, {job[1]} workers, {job[2]}", "tier": name,
                    "local_s": prediction.recorded.wall_s, "told_s": prediction.wall.value,
                    "truth_s": truth.wall_s, "why": prediction.wall.why,
                    "told_wait": prediction.share.value, "true_wait": truth.wait_s / truth.wall_s,
                }
            )  # fmt: skip
            print(_line(rows[-1]), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    predicted_s = row["told_s"]
    off = (
        "not judged"
        if predicted_s is None
        else f"{predicted_s:7.2f} s, off {predicted_s / row['truth_s'] - 1:+.1%}"
    )
    return (
        f"{row['job']:30} {row['tier']:8} local {row['local_s']:6.2f} s, "
        f"there {row['truth_s']:6.2f} s: {off}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", default="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-predict-") as folder:
        rows = _pairs(options.jobs, Path(folder))
    judged = [row for row in rows if row["told_s"] is not None]
    near = [row for row in judged if abs(row["told_s"] / row["truth_s"] - 1) <= 0.10]
    print(f"{len(near)} of {len(judged)} within 10 %; {len(rows) - len(judged)} not judged")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
