"""Trainings under `penstock run --burst-buffer`: what compare says of it, a drain that makes room
for the data of the job, and what each framework writes."""

import fnmatch
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK, kinds, needs
from penstock.explain.measures import measure
from penstock.runs.run import open_run
from penstock.save.burst.file import NEW, entries
from penstock.save.overwritten.earlier import WAS
from penstock_lab.tier import slow
from slowtier import needs_fuse


def is_home(folder: Path, fast: Path) -> bool:
    """Every file is at its path and nothing is left: no link, no draft, nothing on the tier."""
    paths = list(folder.rglob("*"))
    ours = [path for path in paths if path.is_symlink() or NEW in path.name or WAS in path.name]
    return not ours and not entries(fast) and not any((fast / "burst/data").iterdir())


# What it is for


@pytest.mark.slow
@needs_fuse
def test_a_training_that_saves_to_slow_storage_no_longer_waits_for_it(
    recorded_command: Callable[..., Any],
    fast: Path,
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="the demonstration trains with it")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = [sys.executable, "-m", "penstock_lab.demo", "--files", "64", "--epochs", "3"]
    program += ["--workers", "0", "--saves", "slow"]
    runs = []
    for name, options in (("plain", []), ("burst", ["--burst-buffer", str(fast)])):
        below = tmp_path / name
        below.mkdir()
        with slow(below, latency_s=20e-3, metadata_s=1e-3) as tier:
            (work / "slow").symlink_to(tier.path)
            runs.append(recorded_command(program, options=options))
            (work / "slow").unlink()
        assert len(list(below.glob("checkpoint-?.pt"))) == 3
    before, after = (measure(run).training.checkpoint_block_s or 0.0 for run in runs)
    assert after < before / 5
    [row] = measure(runs[1]).burst
    assert (row.files, row.left_files) == (3, 0)
    assert is_home(tmp_path / "burst", fast)
    compared = subprocess.run(
        [PENSTOCK, "compare", "--json", *(run.folder for run in runs)],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    changes = {one["rule"]: one["change"] for one in json.loads(compared.stdout)["findings"]}
    assert changes["C1"] == "gone"


# It makes room

STARVES = """
import json, os, sys, time
import penstock

def said():
    try:
        return json.load(open(sys.argv[1] + "/.penstock/drain.json"))
    except (OSError, ValueError):
        return {"state": "", "updated_unix_ns": 0, "done_bytes": 0}

def train_until(is_over, wait_s):
    end_s = time.monotonic() + 240
    while not is_over(said()):
        assert time.monotonic() < end_s, said()
        with penstock.span("data wait"):
            time.sleep(wait_s)
        with penstock.step():
            time.sleep(0.05 - wait_s)

def seen(state, times):
    # In so many of the drain's words, which come once a second.
    words = {}
    def is_over(word):
        if word["state"] == state:
            words[word["updated_unix_ns"]] = word["done_bytes"]
        return len(words) >= times
    return words, is_over

train_until(seen("idle", 3)[1], 0.002)  # it learns what is usual
with open("checkpoint.pt", "wb") as file:
    file.write(bytes(48 << 20))
train_until(lambda word: word["done_bytes"], 0.002)
paused, is_paused = seen("paused", 5)
train_until(is_paused, 0.045)
train_until(lambda word: not os.listdir(sys.argv[1] + "/burst/data"), 0.002)
print(list(paused.values()))

train_until(seen("idle", 2)[1], 0.002)
with open("last.pt", "wb") as file:
    file.write(bytes(16 << 20))
train_until(seen("paused", 1)[1], 0.045)  # it ends so, and is waited for no more
"""


@pytest.mark.slow
def test_a_drain_pauses_while_the_data_wait_of_the_live_job_is_high(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STARVES)
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", "--burst-buffer", fast]
    command += ["--burst-limit", "8MB/s", "--", sys.executable, tmp_path / "train.py", fast]
    ended = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    # The pieces that were under way when the wait began to rise have ended; no new one began.
    done = json.loads(ended.stdout)
    assert 0 < done[-2] == done[-1] < 48 << 20
    with open_run(tmp_path / "run") as run:
        [row] = measure(run).burst
    assert row.paused_s > 3  # five of its words, a second apart
    # What was copied and read back kept to the limit, but for a quarter of a second of it at once.
    assert row.durable_mean_s > 2 * (48 << 20) / 8e6 - 0.25
    assert is_home(work, fast)


# What frameworks write

# Each waits for the drain and goes on with what came home, all in one process: frameworks take
# seconds to import.
HOME = """
import os, pathlib, time
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "",
               "KERAS_BACKEND": "tensorflow", "OMP_NUM_THREADS": "1"}

def await_home():
    end_s = time.monotonic() + 240
    while left := os.listdir(os.environ["PENSTOCK_BURST"] + "/data"):
        assert time.monotonic() < end_s, left
        time.sleep(0.05)

def there(folder):
    return sorted(path.name for path in pathlib.Path(folder).iterdir() if path.name[0] != ".")
"""

LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 1)
        self.steps = []
    def training_step(self, batch, number):
        self.steps.append(self.global_step)
        self.log("loss", loss := self.layer(batch).square().mean())
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

def fit(module, steps, resumed=None):
    saves = ModelCheckpoint("saved", "{step}", monitor="step", mode="max", save_top_k=2,
                            save_last=True, every_n_train_steps=2)
    Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[saves],
    ).fit(module, torch.utils.data.DataLoader(torch.randn(80, 20), batch_size=8), ckpt_path=resumed)
    return module

first = fit(Module(), 8)
assert there("saved") == ["last.ckpt", "step=6.ckpt", "step=8.ckpt"]
await_home()
assert there("saved") == ["last.ckpt", "step=6.ckpt", "step=8.ckpt"]
again = Module.load_from_checkpoint("saved/step=8.ckpt")
assert torch.equal(again.layer.weight, first.layer.weight)
assert fit(Module(), 10, "saved/last.ckpt").steps == [8, 9]
"""

TRANSFORMERS = """
import warnings
warnings.filterwarnings("ignore")
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

class Model(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(20, 20) for _ in range(4))
        self.post_init()
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return {"loss": x.square().mean()}

def trained(steps, resumed=None):
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, max_steps=steps, save_steps=2,
        save_total_limit=1, use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no",
    )
    data = [{"x": row} for row in torch.randn(80, 20)]
    trainer = Trainer(Model(PretrainedConfig()), arguments, train_dataset=data)
    trainer.train(resume_from_checkpoint=resumed)
    return trainer

first = trained(4)
assert there("out") == ["checkpoint-4"]
first.model.save_pretrained("whole", max_shard_size="2KB")
await_home()
assert {"model.safetensors", "optimizer.pt", "training_args.bin"} <= set(there("out/checkpoint-4"))
assert len(there("whole")) > 4, there("whole")
for folder in ("out/checkpoint-4", "whole"):
    again = Model.from_pretrained(folder).state_dict()
    assert all(torch.equal(again[name], one) for name, one in first.model.state_dict().items())
assert trained(6, "out/checkpoint-4").state.global_step == 6
assert there("out") == ["checkpoint-6"]
"""

TENSORFLOW = """
import keras, numpy as np, tensorflow as tf

net = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(300)])
checkpoint = tf.train.Checkpoint(net=net, step=tf.Variable(0))
manager = tf.train.CheckpointManager(checkpoint, "saved", max_to_keep=2)
for step in range(4):
    checkpoint.step.assign(step)
    manager.save(step)
net.save("net.keras")
net.save("net.keras")
net.save_weights("net.weights.h5")
exported = tf.Module()
exported.first = tf.Variable(net.get_weights()[0])
tf.saved_model.save(exported, "exported")
np.savez("arrays.npz", *net.get_weights())
await_home()
assert there("saved") == ["checkpoint", *(
    f"ckpt-{step}.{end}" for step in (2, 3) for end in ("data-00000-of-00001", "index"))]
weights = [one + 0 for one in net.get_weights()]
same = lambda found: all(map(np.array_equal, found, weights))
net.set_weights([one * 0 for one in weights])
checkpoint.restore(manager.latest_checkpoint).assert_consumed()
assert same(net.get_weights()) and int(checkpoint.step) == 3
net.set_weights([one * 0 for one in weights])
net.load_weights("net.weights.h5")
assert same(net.get_weights())
assert same(keras.models.load_model("net.keras").get_weights())
assert np.array_equal(tf.saved_model.load("exported").first, weights[0])
arrays = np.load("arrays.npz")
assert same([arrays[name] for name in arrays.files])
"""

# What has to have been made on the tier; safetensors writes .tmpABCDEF and renames.
FRAMEWORKS = {
    "lightning": (LIGHTNING, ("torch", "lightning"), ("*/last.ckpt", "*/step=8.ckpt")),
    "transformers": (
        TRANSFORMERS,
        ("torch", "transformers", "accelerate"),
        ("*/checkpoint-4/.tmp??????", "*/checkpoint-4/optimizer.pt", "*/whole/.tmp??????"),
    ),
    "tensorflow": (
        TENSORFLOW,
        ("tensorflow",),
        ("*.data-00000-of-00001.*", "*/net.keras", "*/net.weights.h5", "*/arrays.npz"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", kinds(FRAMEWORKS, dict.fromkeys(("transformers", "tensorflow"), "lightning"))
)
def test_what_a_framework_saves_comes_home_and_loads(
    name: str, recorded: Callable[..., Any], fast: Path, work: Path
) -> None:
    source, modules, made = FRAMEWORKS[name]
    for module in modules:
        needs(module)
    with elsewhere() as temporary:
        run = recorded(
            HOME + source,
            options=["--burst-buffer", str(fast)],
            environment={"TMPDIR": str(temporary)},
        )
    paths = [path for (path,) in run.sql("select path from files where served_from is not null")]
    assert [one for one in made if not fnmatch.filter(paths, one)] == []
    assert is_home(work, fast)


@contextmanager
def elsewhere() -> Iterator[Path]:
    """A folder for temporary files on another file system than the checkpoints, as slow storage is:
    Lightning writes there first, and moves."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
