"""After the whole way (snapshot or writer, commit, drain, prune, recovery) every file is read by
the library that its format belongs to, in a program that knows nothing of Penstock."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.save.drain.recover import recover
from penstock.save.drain.working import DrainSettings
from penstock.save.training.checkpointer import Checkpointer, Keep

torch: Any = pytest.importorskip("torch")
pytest.importorskip("safetensors")

STEP = 7

READERS = {
    "torch": """
        import torch
        found = torch.load(place + "/state.pt", weights_only=True)
        x, step = found["x"], found["step"]
    """,
    "safetensors": """
        import json
        from safetensors.numpy import load_file
        x = load_file(place + "/state.safetensors")["x"]
        step = json.load(open(place + "/state.json"))["step"]
    """,
    "dcp": """
        import torch
        import torch.distributed.checkpoint as dcp
        state = {"x": torch.zeros(1000), "step": 0}
        dcp.load(state, storage_reader=dcp.FileSystemReader(place), no_dist=True)
        x, step = state["x"], state["step"]
    """,
}


SAVE_BY_DCP = """
    import sys
    import torch
    import torch.distributed.checkpoint as dcp
    from penstock.adapters.save.torch import TieredWriter

    step = int(sys.argv[2])
    state = {"x": torch.full((1000,), float(step)), "step": step}
    dcp.save(state, storage_writer=TieredWriter(sys.argv[1], None, step), no_dist=True)
"""


def _saved_by_checkpointer(fast: Path, slow: Path, x: Any) -> None:
    with Checkpointer(fast, slow, keep=Keep(fast=1, last=1)) as ckpt:
        for step in range(STEP + 1):
            ckpt.save(step, {"x": x * step, "step": step})


def _saved(kind: str, fast: Path, slow: Path) -> None:
    if kind == "torch":
        _saved_by_checkpointer(fast, slow, torch.ones(1000))
    elif kind == "safetensors":
        _saved_by_checkpointer(fast, slow, np.ones(1000))
    else:  # a program of its own, as the folder is its job's until it ends
        source = textwrap.dedent(SAVE_BY_DCP)
        subprocess.run([sys.executable, "-c", source, fast, str(STEP)], check=True)


@pytest.mark.parametrize("kind", READERS)
def test_what_arrives_is_read_by_its_own_library_alone(kind: str, tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    _saved(kind, fast, slow)
    choice, failed = recover(fast, slow, DrainSettings(settle_s=0))
    assert (choice.step, failed) == (STEP, [])
    shutil.rmtree(fast)  # the node is gone
    [place] = slow.glob("step-*")
    lines = READERS[kind].strip().splitlines()
    program = "\n".join([
        "import sys",
        f"place = {str(place)!r}",
        *[line.strip() for line in lines],
        f"assert (x == {STEP}).all() and len(x) == 1000 and step == {STEP}, (x, step)",
        "assert not any(name.split('.')[0] == 'penstock' for name in sys.modules)",
    ])  # fmt: skip
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", program], check=True, env=clean)
