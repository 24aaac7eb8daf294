"""What staging was expected to bring and what it brought; the copying's rate; a million files.

    python benchmarks/stage.py                 all of it, some ten minutes, 2 GB of disk and memory
    python benchmarks/stage.py --short         a tenth of the files
    python benchmarks/stage.py imagenet tf-darshan copy million      some of it

Each workload: `penstock run` on a slow tier (FUSE: latency and bandwidth of its own), `stage plan`,
`stage copy` to memory, `penstock run --staged`, and the data wait of the two runs.  What was read
is evicted between runs.  Writes the table to build/bench/stage/table.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bars import PENSTOCK, ROOT, Bar, report, scratch

from penstock import registry, tiers
from penstock.bench.tier import slow
from penstock.stage.choose import best, worth
from penstock.stage.copy import copy
from penstock.stage.evidence import Evidence
from penstock.stage.held import evict, stored_bytes
from penstock.stage.plan import plan
from penstock.stage.source import below

TRAIN = ROOT / "benchmarks" / "stage_train.py"
COMMAND = "python benchmarks/stage.py"
PREDICTED_WITHIN = 0.10  # of the measured gain: the bar
COPIES_AT = 0.9  # of the slower of the two ceilings
MILLION_S = 5.0
MALWARE_FILES = 10_868  # Microsoft's malware challenge, as tf-Darshan read it (CLUSTER 2020)


@dataclass(frozen=True, slots=True)
class Workload:
    """Files, a slow tier and a loader.  sizes: bytes of each file.  budget: share of all bytes."""

    name: str
    sizes: Callable[[np.random.Generator, float], Any]
    bandwidth: float
    latency_s: float
    workers: int
    batch: int
    step_ms: float
    budget: float


def _imagenet(chance: np.random.Generator, scale: float) -> Any:
    return np.clip(chance.lognormal(np.log(100e3), 0.5, int(3000 * scale)), 5e3, 2e6)


def _malware(chance: np.random.Generator, scale: float, files: int = 240) -> Any:
    """Log-normal, median 4 MB; 40 % below 2 MB as tf-Darshan tells makes sigma some 2.7 at most;
    its bytes in all, 48 GB, make it 0.65 above the median: 40 % of files hold 8 % of the bytes."""
    n = max(20, int(files * scale))
    small = chance.uniform(50e3, 2e6, int(n * 0.407))  # 4,420 of 10,868 files; 3.7 GB of 48
    large = chance.lognormal(np.log(6.3e6), 0.45, n - len(small))
    return np.concatenate([small, np.clip(large, 2e6, 60e6)])


def _mixed(chance: np.random.Generator, scale: float) -> Any:
    return np.concatenate([_imagenet(chance, scale / 2), _malware(chance, scale, 120)])


WORKLOADS = (
    Workload("imagenet", _imagenet, 200e6, 0.005, 2, 32, 4.0, 0.5),
    Workload("malware", _malware, 100e6, 0.005, 2, 4, 10.0, 0.3),
    Workload("mixed", _mixed, 150e6, 0.003, 2, 16, 6.0, 0.3),
)


def made(workload: str, sizes: Any) -> Path:
    """The files, in folders of a hundred."""
    folder = scratch("stage") / workload
    shutil.rmtree(folder, ignore_errors=True)
    chance = np.random.default_rng(3)
    for number, size in enumerate(sizes.astype(int).tolist()):
        path = folder / f"{number // 100:03}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.bytes(size))
    return folder


@contextmanager
def fast_tier() -> Iterator[registry.Tier]:
    """A tier in memory, known to this benchmark only."""
    folder = Path("/dev/shm") / f"penstock-bench-{os.getpid()}"
    os.environ[registry.ENVIRONMENT] = str(scratch("stage") / "tiers.json")
    folder.mkdir()
    try:
        registry.add("bench", folder)
        yield registry.set_measured(
            "bench",
            registry.measure_costs(folder),
            tiers.write_ceiling(folder, 0.5, max_bytes=256 << 20),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def penstock(*words: str | Path) -> str:
    begun = time.perf_counter()
    done = subprocess.run(
        [PENSTOCK, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise SystemExit(f"penstock {' '.join(map(str, words))}: {done.stderr[-2000:]}")
    took_s = time.perf_counter() - begun
    print(f"{took_s:7.1f} s  penstock {' '.join(map(str, words[:2]))}", file=sys.stderr, flush=True)
    return done.stdout


def trained(run: Path, one: Workload, folder: str, *options: str) -> dict[str, Any]:
    """A run of the training program on the files seen at folder; its data wait and wall time."""
    shutil.rmtree(run, ignore_errors=True)
    penstock(
        "run", "-q", "-o", run, *options, "--", sys.executable, TRAIN, folder, "--workers",
        str(one.workers), "--batch", str(one.batch), "--step-ms", str(one.step_ms),
    )  # fmt: skip
    rows = json.loads(penstock("report", run, "--json"))
    parts = {part["key"]: part["s"] for part in rows["wall"]}
    wait_s = sum(s for key, s in parts.items() if key.startswith("data "))
    return {"wait_s": wait_s, "wall_s": sum(parts.values())}


def gained(one: Workload, scale: float) -> list[Bar]:
    """Run, plan, copy, run again: the predicted and the measured gain."""
    sizes = one.sizes(np.random.default_rng(1), scale)
    data = made(one.name, sizes)
    place = scratch("stage") / "slow"
    base = scratch("stage") / "runs" / one.name
    budget = int(sizes.sum() * one.budget)
    with fast_tier() as tier:
        with slow_at(data, place, one):
            before = trained(base / "before", one, str(place))
        with slow_at(data, place, one):
            penstock("ceiling", base / "before", "--for", "8s")
        with slow_at(data, place, one):  # a mount of its own: what it knew of files is forgotten
            planned = json.loads(
                penstock("stage", "plan", base / "before", "--to", "bench", "--budget",
                         str(budget), "-o", base / "plan.jsonl", "--picture",
                         base / "curve.html", "--json")
            )  # fmt: skip
            penstock("stage", "copy", base / "plan.jsonl", "--to", "bench")
        with slow_at(data, place, one):
            after = trained(base / "after", one, str(place), "--staged", "bench")
        evict(tier)
    print(penstock("compare", base / "before", base / "after"), flush=True)
    shutil.rmtree(data)
    gain_s = before["wait_s"] - after["wait_s"]
    off = abs(planned["gain_s"] - gain_s) / gain_s if gain_s > 0 else float("inf")
    bars = [
        Bar(
            f"{one.name}: predicted gain, off by",
            f"≤ {PREDICTED_WITHIN:.0%}",
            f"{off:.1%}: {planned['gain_s']:.2f} s said, {gain_s:.2f} s measured "
            f"of {before['wait_s']:.2f} s wait, {planned['size_bytes'] / 1e6:.0f} MB",
            off <= PREDICTED_WITHIN,
            f"{COMMAND} {one.name}",
        )
    ]
    for other in planned["compared"]:
        bars.append(
            Bar(
                f"{one.name}: by {other['policy']}, predicted",
                "",
                f"{other['gain_s']:.2f} s with {other['size_bytes'] / 1e6:.0f} MB",
                None,
                f"{COMMAND} {one.name}",
            )
        )
    return bars


@contextmanager
def slow_at(data: Path, place: Path, one: Workload) -> Iterator[Any]:
    place.mkdir(exist_ok=True)
    with slow(data, bandwidth=one.bandwidth, latency_s=one.latency_s, at=place) as tier:
        yield tier
    place.rmdir()


def tf_darshan(scale: float) -> list[Bar]:
    """Its malware case: the files below 2 MB by hand, and what we would take for the same bytes.

    The paper: 40 % of files, 8 % of bytes to a fast disk, 19 % more bandwidth with one thread.
    """
    one = Workload(
        "tf-darshan", lambda chance, s: _malware(chance, s, 200), 94e6, 0.010, 1, 4, 0.0, 0.0
    )
    sizes = one.sizes(np.random.default_rng(2), scale)
    data = made(one.name, sizes)
    place, base = scratch("stage") / "slow", scratch("stage") / "runs" / one.name
    is_small = sizes < 2e6
    budget = int(stored_bytes(sizes[is_small].astype(int)).sum())
    rows = []
    with fast_tier() as tier, slow_at(data, place, one):
        before = trained(base / "before", one, str(place))
        for policy in ("small", "gain"):
            penstock("stage", "copy", base / "before", "--to", "bench", "--budget", str(budget),
                     "--policy", policy)  # fmt: skip
            rows.append((policy, trained_after(base, one, place, policy)))
            evict(tier)
    shutil.rmtree(data)
    command = f"{COMMAND} tf-darshan"
    what = f"{len(sizes)} files, {sizes.sum() / 1e9:.2f} GB"
    share = f"{is_small.mean():.0%} of files, {sizes[is_small].sum() / sizes.sum():.1%} of bytes"
    bars = [Bar("tf-Darshan: files below 2 MB", "40 %, 8 %", f"{share}; {what}", None, command)]
    for policy, after in rows:
        more = before["wall_s"] / after["wall_s"] - 1
        bars.append(
            Bar(f"tf-Darshan: bandwidth gained by {policy}", "paper: 19 %", f"{more:.1%}", None,
                command)
        )  # fmt: skip
    return bars


def trained_after(base: Path, one: Workload, place: Path, policy: str) -> dict[str, Any]:
    for path in place.rglob("*.bin"):
        tiers.evict(path, is_synced=True)
    return trained(base / policy, one, str(place), "--staged", "bench")


def copying(scale: float) -> list[Bar]:
    """Bytes a second of copying, against what the slow tier reads and the fast one writes."""
    chance = np.random.default_rng(5)
    sizes = np.concatenate([np.full(int(4 * max(1, scale * 2)), 100e6), _imagenet(chance, 0.2)])
    data = made("copy", sizes)
    one = Workload("copy", _imagenet, 400e6, 0.001, 1, 1, 0, 1)
    place = scratch("stage") / "slow"
    with fast_tier() as tier, slow_at(data, place, one):
        paths = [str(path) for path in sorted(place.rglob("*.bin"))]
        read = max(found.bandwidth_bps for found in tiers.read_ceiling(paths, 2.0))
        for path in paths:
            tiers.evict(path, is_synced=True)
        found = copy(tier, below(place))
    shutil.rmtree(data)
    least = min(read, tier.write_bps or read)
    share = found.copied_bytes / found.seconds / least
    return [
        Bar(
            "copying, of min(slow read, fast write)",
            f"≥ {COPIES_AT}",
            f"{share:.2f}: {found.copied_bytes / found.seconds / 1e6:.0f} MB/s of "
            f"{least / 1e6:.0f}",
            share >= COPIES_AT,
            f"{COMMAND} copy",
        )
    ]


def million(scale: float) -> list[Bar]:
    """A plan over a million files, from the run's columns to the chosen paths."""
    n, chance = 1_000_000, np.random.default_rng(0)
    sizes = np.clip(chance.lognormal(np.log(110e3), 0.6, n), 2e3, 20e6).astype(np.int64)
    time_s = 0.002 + sizes / 200e6 * chance.uniform(0.5, 2.0, n)
    ones = np.ones(n)
    evidence = Evidence(
        tuple(f"/data/train/{number // 1000:04}/{number:07}.jpg" for number in range(n)),
        (None,) * n, ones.astype(np.int64), sizes, ones, ones, sizes * 1.0, time_s,
        time_s * chance.uniform(0, 1, n), np.zeros(n, bool), time_s / 10,
        np.zeros(n, bool), 900.0, 2000.0,
    )  # fmt: skip
    with fast_tier() as tier:
        begun = time.perf_counter()
        made_plan = plan("run", evidence, tier, budget_bytes=10 << 30)
        took_s = time.perf_counter() - begun
        value = worth(evidence, tier.costs or registry.Costs(0, 0, 0))
        found = best(value, stored_bytes(sizes), made_plan.budget_bytes)
    return [
        Bar(
            "planning 1,000,000 files",
            f"≤ {MILLION_S:g} s",
            f"{took_s:.1f} s, {made_plan.files:,} chosen, {found.of_best:.4%} of the bound",
            took_s <= MILLION_S,
            f"{COMMAND} million",
        )
    ]


def main(names: Sequence[str] = (), scale: float = 1.0) -> list[Bar]:
    parts: dict[str, Callable[[], list[Bar]]] = {
        one.name: lambda one=one: gained(one, scale) for one in WORKLOADS
    }
    parts |= {
        "tf-darshan": lambda: tf_darshan(scale),
        "copy": lambda: copying(scale),
        "million": lambda: million(scale),
    }
    bars = []
    for name in names or parts:
        bars += parts[name]()
    lines = [f"| {bar.what} | {bar.bar} | {bar.measured} |" for bar in bars]
    table = scratch("stage") / "table.md"
    table.write_text("\n".join(["| what | bar | measured |", "| --- | --- | --- |", *lines, ""]))
    return bars


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--short", action="store_true")
    told = parser.parse_args()
    report(main(told.names, 0.1 if told.short else 1.0))
