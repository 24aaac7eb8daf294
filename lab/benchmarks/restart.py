"""Restarts from cold storage: the weights of a run come back, by Penstock and by its peers.

    python lab/benchmarks/restart.py            all; SIZE_MB=500 sets the size of the weights
    python lab/benchmarks/restart.py latency    one part: disk or latency

latency mounts a FUSE file system with 1 ms a request (root).  A program measures its own time, from
the first open of the file until every page of every tensor was read.  The programs run in turn, and
each begins cold.  Checkpointer.restore compares each byte with the checksums of the save; the other
programs check nothing.  Peers: pip install fastsafetensors runai-model-streamer.
"""

import os
import shutil
import statistics
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from bars import Bar, report, scratch, timed_program

from penstock.places.tiers import evict, read_ceiling
from penstock_lab import places
from penstock_lab import tier as slow_tiers

__all__ = ["main"]

COMMAND = "python lab/benchmarks/restart.py"
SIZE_BYTES = int(os.environ.get("SIZE_MB", "500")) << 20
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TENSORS = 50
LEAST_OF_CEILING = 0.9
LEAST_OF_PEERS = 1.0

BEGIN = """
import sys, time, torch
path = sys.argv[1]
def touched(tensor):
    return int(tensor.view(torch.uint8)[::4096].sum())
"""
PROGRAMS = {
    "safetensors": """
from safetensors.torch import load_file
start = time.perf_counter()
sum(map(touched, load_file(path + "/w.safetensors").values()))
""",
    "fastsafetensors": """
from fastsafetensors import fastsafe_open
start = time.perf_counter()
with fastsafe_open(filenames=[path + "/w.safetensors"], nogds=True, device="cpu") as file:
    sum(touched(file.get_tensor(key)) for key in file.keys())
""",
    "runai-model-streamer": """
from runai_model_streamer import SafetensorsStreamer
start = time.perf_counter()
with SafetensorsStreamer() as streamer:
    streamer.stream_file(path + "/w.safetensors")
    sum(touched(tensor) for _, tensor in streamer.get_tensors())
""",
    "torch.load": """
start = time.perf_counter()
sum(map(touched, torch.load(path + "/run/step-00000001/state.pt").values()))
""",
    "Checkpointer.restore": f"""
from penstock.save import Checkpointer
state = {{f"layer{{n}}": torch.empty({SIZE_BYTES // TENSORS // 4}) for n in range({TENSORS})}}
for tensor in state.values(): tensor.fill_(0)
start = time.perf_counter()
with Checkpointer(slow=path + "/run") as checkpoints:
    assert checkpoints.restore(state) == 1
sum(map(touched, state.values()))
""",
}
END = """
print(time.perf_counter() - start)
"""
AHEAD = "safetensors, run --ahead"
PEERS = ("fastsafetensors", "runai-model-streamer")


def main(*parts: str) -> list[Bar]:
    folder = scratch("restart")
    data = folder / "data"
    _make(data)
    try:
        return [bar for part in parts or PARTS for bar in PARTS[part](folder, data)]
    finally:
        shutil.rmtree(folder)


def _make(data: Path) -> None:
    """Write equal weights as safetensors and as a checkpoint."""
    import torch
    from safetensors.torch import save_file

    from penstock.save import Checkpointer

    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    state = {f"layer{n}": torch.randn(SIZE_BYTES // TENSORS // 4) for n in range(TENSORS)}
    save_file(state, data / "w.safetensors")
    with Checkpointer(slow=data / "run") as checkpoints:
        checkpoints.save(1, state).local.result()
    os.sync()


def _timed(folder: Path, name: str, seen: Path) -> float:
    """Run a program, cold; return the seconds measured by the program."""
    for path in seen.rglob("*"):
        if path.is_file():
            evict(path)
    source = BEGIN + PROGRAMS[name.partition(",")[0]] + END
    return timed_program(folder, source, seen, ["--ahead"] if name == AHEAD else None)


def _rows(folder: Path, seen: Path, part: str) -> list[Bar]:
    there = [name for name in PROGRAMS if name not in PEERS or find_spec(name.replace("-", "_"))]
    names = [*there, AHEAD]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            times[name].append(_timed(folder, name, seen))
    taken = {name: statistics.median(row) for name, row in times.items()}
    evict(seen / "w.safetensors")
    ceilings = read_ceiling([seen / "w.safetensors"], orders=["sequential"])
    ceiling = max(row.bandwidth_bps for row in ceilings)
    where = f"{SIZE_BYTES >> 20} MiB, cold {part}"
    bars = []
    for name in names:
        share = SIZE_BYTES / taken[name] / ceiling
        measured = f"{taken[name]:.2f} s ({min(times[name]):.2f} to {max(times[name]):.2f})"
        measured += f", {share:.2f} of the ceiling"
        is_ours = name in (AHEAD, "Checkpointer.restore")
        bar = f"≥ {LEAST_OF_CEILING} of the ceiling" if is_ours else "–"
        said = f"{name} {metadata.version(name)}" if name in PEERS else name
        is_met = share >= LEAST_OF_CEILING if is_ours else None
        bars.append(Bar(f"{said}, {where}", bar, measured, is_met, f"{COMMAND} {part}"))
    for name, peers in (
        (AHEAD, ["safetensors", *(peer for peer in PEERS if peer in there)]),
        ("Checkpointer.restore", ["torch.load"]),
    ):
        best = min(peers, key=taken.__getitem__)
        ratio = taken[best] / taken[name]
        what, bar = f"{name} over the best of its peers, {best}, {where}", f"≥ {LEAST_OF_PEERS}"
        is_met = ratio >= LEAST_OF_PEERS
        bars.append(Bar(what, bar, f"×{ratio:.2f}", is_met, f"{COMMAND} {part}"))
    return bars


def disk(folder: Path, data: Path) -> list[Bar]:
    return _rows(folder, data, "disk")


def latency(folder: Path, data: Path) -> list[Bar]:
    for path in data.rglob("*"):
        if path.is_file():
            path.read_bytes()  # the tier's own folder is warm: the disk is not measured
    with slow_tiers.slow(data, bandwidth=2e9, latency_s=places.LATENCY_S) as tier:
        return _rows(folder, Path(tier.path), "latency")


PARTS: dict[str, Callable[[Path, Path], list[Bar]]] = {"disk": disk, "latency": latency}

if __name__ == "__main__":
    report(main(*sys.argv[1:]))
