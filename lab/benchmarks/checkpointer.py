"""The cost of a save: the block and the time to durable, beside the floor and beside other tools.

    python lab/benchmarks/checkpointer.py             the rows of docs/performance.md: four minutes

All comparisons alternate in one process.  `warm`: the pages of the arena and of the other tool's
memory exist; `cold`: both are made within the measured time.  checkpointer_training.py measures the
effect on a training.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bars import Bar, report, scratch

from penstock.save.training.arena import Arena
from penstock.save.training.checkpointer import Checkpointer, Keep

__all__ = ["blocking", "main", "make_state", "median_ms"]

ROUNDS, PEER_ROUNDS = 7, 3
SIZES = {"220 MB": 220 << 20, "1.07 GB": 1070 << 20}
BLOCK_RATIO, DURABLE_RATIO = 1.3, 1.5
PIECE_BYTES = 4 << 20
PRUNED_WITHIN_S = 20.0
COMMAND = "python lab/benchmarks/checkpointer.py"


def make_state(n_bytes: int) -> dict[str, Any]:
    """A model's weights in fp32 and AdamW's two moments of each, in layers of some megabytes."""
    torch.manual_seed(0)
    hidden = 1024 if n_bytes > 512 << 20 else 512
    shapes = [(3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)]
    shapes += [(hidden,), (4 * hidden,)]
    weights: dict[str, Any] = {}
    moments: dict[int, Any] = {}
    used = 0
    while used < n_bytes:
        for shape in shapes:
            weight = torch.randn(*shape)
            number = len(weights)
            weights[f"layers.{number}"] = weight
            moments[number] = {
                "step": torch.tensor(1.0),
                "exp_avg": torch.randn(*shape),
                "exp_avg_sq": torch.rand(*shape),
            }
            used += 3 * weight.nbytes
    return {"model": weights, "optimizer": {"state": moments}}


def tensors(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in tensors(value)]
    return [state]


def timed(action: Callable[[], Any]) -> float:
    begin_s = time.perf_counter()
    action()
    return time.perf_counter() - begin_s


def memcpy_of(state: Any) -> Callable[[], None]:
    """Copy into shared memory: the least cost of a snapshot.  The first call makes the memory."""
    sources = tensors(state)
    places = [0]
    for tensor in sources:
        places.append(places[-1] + -(-tensor.nbytes // 64) * 64)
    targets: list[Any] = []

    def copy() -> None:
        if not targets:
            whole = torch.frombuffer(Arena(places[-1]).memory, dtype=torch.uint8)
            for place, tensor in zip(places, sources, strict=False):
                part = whole[place : place + tensor.nbytes]
                targets.append(part.view(tensor.dtype).view(tensor.shape))
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    return copy


def direct_write(memory: Any, size: int, path: Path) -> None:
    """Write with the least cost of a durable file: whole pieces past the page cache, and fsync."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_DIRECT, 0o644)
    view = memoryview(memory)
    for offset in range(0, size // 4096 * 4096, PIECE_BYTES):
        os.pwrite(descriptor, view[offset : min(offset + PIECE_BYTES, size // 4096 * 4096)], offset)
    os.fsync(descriptor)
    os.close(descriptor)


def block_and_durable(name: str, n_bytes: int) -> list[Bar]:
    folder = scratch("checkpointer")
    state = make_state(n_bytes)
    total = sum(tensor.nbytes for tensor in tensors(state))
    copy, floor = memcpy_of(state), Arena(total)
    first_copy_s = timed(copy)
    rows = []
    with Checkpointer(folder / "fast", keep=Keep(last=1)) as ckpt:
        ckpt.save(0, state).local.result()
        for step in range(1, ROUNDS + 1):
            copy_s = timed(copy)
            ckpt.save(step, state).local.result()
            _await_pruned(folder / "fast")  # else the floor is written beside the removals
            write_s = timed(lambda: direct_write(floor.memory, total, folder / "floor"))
            (folder / "floor").unlink()
            saved = ckpt.saves[-1]
            assert saved.block_s is not None
            assert saved.local_s is not None
            rows.append((copy_s, saved.block_s, write_s, saved.local_s))
        first_s = ckpt.saves[0].block_s or 0.0
    floor.close()
    shutil.rmtree(folder)
    copies, blocks, writes, durables = zip(*rows, strict=True)
    block = statistics.median(b / c for b, c in zip(blocks, copies, strict=True))
    durable = statistics.median(d / w for d, w in zip(durables, writes, strict=True))
    return [
        Bar(
            f"save: block of the step loop, {name}, arena warm, / memcpy", f"≤ ×{BLOCK_RATIO}",
            f"×{block:.2f} ({median_ms(blocks)} / {median_ms(copies)})",
            block <= BLOCK_RATIO, COMMAND,
        ),
        Bar(
            "- cold: the first save, arena made, / memcpy into memory that is made", "–",
            f"×{first_s / first_copy_s:.2f} ({first_s * 1e3:.0f} / {first_copy_s * 1e3:.0f} ms)",
            None, COMMAND,
        ),
        Bar(
            f"save: durable, {name}, from the call, / O_DIRECT write + fsync",
            f"≤ ×{DURABLE_RATIO}", f"×{durable:.2f} ({median_ms(durables)} / {median_ms(writes)})",
            durable <= DURABLE_RATIO, COMMAND,
        ),
        *peers(state, statistics.median(copies), statistics.median(writes)),
    ]  # fmt: skip


def _await_pruned(tier: Path) -> None:
    end_s = time.monotonic() + PRUNED_WITHIN_S
    while len([*tier.glob("step-*")]) > 1 or [*tier.glob(".penstock/trash/*")]:
        if time.monotonic() > end_s:
            raise SystemExit(f"{tier}: not pruned in {PRUNED_WITHIN_S:.0f} s")
        time.sleep(0.01)


def peers(state: Any, copy_s: float, write_s: float) -> list[Bar]:
    """Measure other tools on an equal state.  Their "durable" lacks a sync of the folder."""
    import logging

    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    logging.disable(logging.INFO)
    folder = scratch("checkpointer")
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )  # fmt: skip
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "torch.save + fsync": lambda: (timed(lambda: blocking(state, folder / "peer.pt")),) * 2,
        "DCP async_save, default": lambda: _dcp(state, folder / "dcp", None),
        "DCP async_save, stager reused": lambda: _dcp(state, folder / "dcp", stager),
    }
    stager.stage(state)
    times_of: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(PEER_ROUNDS):
        for name, way in ways.items():
            shutil.rmtree(folder)
            folder.mkdir()
            times_of[name].append(way())
    stager.close()
    shutil.rmtree(folder)
    rows = []
    for name, times in times_of.items():
        blocks, durables = zip(*times, strict=True)
        block, durable = statistics.median(blocks) / copy_s, statistics.median(durables) / write_s
        rows.append(
            Bar(
                f"for comparison, {name}: block / memcpy; durable / O_DIRECT write", "–",
                f"×{block:.2f} ({median_ms(blocks)}); ×{durable:.2f} ({median_ms(durables)})",
                None, COMMAND,
            )
        )  # fmt: skip
    return rows


def _dcp(state: Any, path: Path, stager: Any) -> tuple[float, float]:
    import torch.distributed.checkpoint as dcp

    begin_s = time.perf_counter()
    more = {} if stager is None else {"async_stager": stager}
    saving = dcp.async_save(state, checkpoint_id=path, no_dist=True, **more)
    block_s = time.perf_counter() - begin_s
    getattr(saving, "upload_completion", saving).result()
    return block_s, time.perf_counter() - begin_s


def median_ms(seconds: Any) -> str:
    return f"{statistics.median(seconds) * 1e3:.0f} ms"


def blocking(state: Any, path: Path) -> None:
    """torch.save, synced."""
    torch.save(state, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> list[Bar]:
    return [bar for name, size in SIZES.items() for bar in block_and_durable(name, size)]


if __name__ == "__main__":
    for name, size in SIZES.items():
        report(block_and_durable(name, size))
