"""Trainings on a GPU with clocks of their own, to compare with the verdict of a recording.

    penstock run -q -o RUN python lab/benchmarks/gpu.py JOB ANSWER.json
    python lab/benchmarks/gpu.py --all FOLDER      record all, and keep runs and answers in FOLDER

The host's clock gives the share of the time that the loop waits for data.  CUDA events around each
step give the share of the time in which the GPU had no kernel of ours: a wait while the GPU
works on earlier steps costs nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

JOBS: dict[str, dict[str, Any]] = {
    # name: seconds of the loader per batch, matrix products per step, steps between read losses
    "compute": {"loader_s": 0.001, "products": 60, "read_every": 1},
    "starved": {"loader_s": 0.040, "products": 6, "read_every": 1},
    "hidden": {"loader_s": 0.008, "products": 60, "read_every": 50},
    "half hidden": {"loader_s": 0.024, "products": 60, "read_every": 50},
    "starved, never read": {"loader_s": 0.040, "products": 6, "read_every": 1000},
    "pinned workers": {"loader_s": 0.060, "products": 30, "read_every": 1, "workers": 2},
    "hidden loader": {"loader_s": 0.008, "products": 60, "read_every": 50, "workers": 1},
    "half hidden loader": {"loader_s": 0.024, "products": 60, "read_every": 50, "workers": 1},
    "starved loader": {"loader_s": 0.040, "products": 6, "read_every": 1, "workers": 1},
    "saves": {"loader_s": 0.001, "products": 30, "read_every": 1, "save_every": 40},
}
SECONDS = 10.0
SIDE = 4096


class HostTimes:
    """Sums of host time by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def take(self, name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def batches(job: dict[str, Any], torch: Any) -> Iterator[Any]:
    """Yield batches for ever, each `loader_s` after it is begun."""
    wait_s = job["loader_s"]
    # the sleep stands in for a slow store; the workers' own file calls are not the matter here
    if workers := job.get("workers"):

        class Slow(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
            def __len__(self) -> int:
                return 1 << 20

            def __getitem__(self, index: int) -> Any:
                time.sleep(wait_s)
                return torch.ones(256, 1024)

        loader = torch.utils.data.DataLoader(
            Slow(), batch_size=1, num_workers=workers, pin_memory=True
        )
        yield from loader
    file = Path(sys.argv[0]).resolve()
    while True:
        with open(file, "rb", buffering=0) as data:
            data.read(65536)
        end = time.perf_counter() + wait_s
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        yield torch.ones(256, 1024)


def trained(name: str) -> dict[str, Any]:
    """Run one job; return wall time, GPU busy share, and shares of the host's time by part."""
    import torch

    job, clock = JOBS[name], HostTimes()
    device = torch.device("cuda")
    weight = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    state = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    model = torch.nn.Linear(1024, 1024, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def forward(batch: Any) -> Any:
        nonlocal state
        optimizer.zero_grad()
        out = state
        for _ in range(job["products"]):
            out = torch.mm(out, weight) * 0.01
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    warm = torch.ones(256, 1024, device=device)
    for _ in range(3):
        forward(warm)
    torch.cuda.synchronize()
    loader = iter(batches(job, torch))
    next(loader)
    events = []
    steps, begin = 0, time.perf_counter()
    first = torch.cuda.Event(enable_timing=True)
    first.record()
    while time.perf_counter() - begin < SECONDS:
        batch = clock.take("data", lambda: next(loader))
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        batch = clock.take("copy", lambda b=batch: b.to(device, non_blocking=True))
        started.record()
        loss = clock.take("launch", lambda b=batch: forward(b))
        ended.record()
        events.append((started, ended))
        steps += 1
        if steps % job["read_every"] == 0:
            clock.take("read", lambda value=loss: value.item())
        if (every := job.get("save_every")) and steps % every == 0:
            clock.take(
                "save",
                lambda: torch.save({"w": weight, "m": model.state_dict()}, "/tmp/gpu-save.pt"),
            )
    clock.take("read", torch.cuda.synchronize)
    wall_s = time.perf_counter() - begin
    busy_ms = sum(started.elapsed_time(ended) for started, ended in events)
    return {
        "job": name,
        "steps": steps,
        "wall_s": wall_s,
        "gpu_busy": busy_ms / 1000 / wall_s,
        "shares": {part: seconds / wall_s for part, seconds in clock.seconds.items()},
    }


def record_all(folder: Path, command: list[str]) -> None:
    """Run each job recorded and unrecorded; keep runs and answers in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in JOBS:
        plain = name.replace(" ", "_").replace(",", "")
        for prefix, to in (
            (command + ["-o", str(folder / plain), "--"], "recorded"),
            ([], "plain"),
        ):
            answer = folder / f"{plain}.{to}.json"
            done = subprocess.run(
                [*prefix, sys.executable, __file__, name, str(answer)], check=False, timeout=120
            )
            if done.returncode:
                print(f"{name}: status {done.returncode}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("answer", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.job == "all":
        record_all(options.answer, options.command or ["penstock", "run", "-q"])
        return
    answer = trained(options.job)
    options.answer.write_text(json.dumps(answer))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
