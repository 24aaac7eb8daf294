"""Each framework's training, killed at random, goes on with the losses that it would have had."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fixtures import kinds, needs
from penstock.places.stores import LocalStore
from penstock.save.find.formats import find
from penstock.save.verify import verify

# Every training is made a function of FAST and SLOW, and is run in each FOLDER of PROGRAM FOLDERS:
# the frameworks take seconds to import.  It prints "LOSS FOLDER STEP VALUE" after each step.
BEGIN = """
import os, sys, time

def say(step, loss):
    loss = float(loss.detach() if hasattr(loss, "detach") else loss)
    os.write(1, f"LOSS {folder} {step} {loss!r}\\n".encode())
    if folder != sys.argv[1] or len(sys.argv) == 2:
        time.sleep(0.05)  # so that a kill finds it in its steps, and not at its end
        if step == int(os.environ["HELD_AT"]):
            time.sleep(1000)
"""
END = """
for folder in sys.argv[1:]:
    train(f"{folder}/fast", f"{folder}/slow")
"""

DCP = """
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from penstock.adapters.save.torch import TieredReader, TieredWriter

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(1)
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
state = {"model": model.state_dict(), "momentum": torch.zeros(1, 20), "bias": torch.zeros(1)}
reader = TieredReader.latest(fast, slow)
step = 0
if reader is not None:
    dcp.load(state, storage_reader=reader)
    step = reader.step
    model.load_state_dict(state["model"])
    optimizer.state[model.weight]["momentum_buffer"] = state["momentum"].clone()
    optimizer.state[model.bias]["momentum_buffer"] = state["bias"].clone()
stager = DefaultStager(StagingOptions(False, True, False, False))
saved = None
while step < 30:
    torch.manual_seed(step)
    loss = (model(torch.randn(8, 20)) - 1).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    step += 1
    say(step, loss)
    if step % 3 == 0:
        if saved is not None:
            saved.result()
        state = {
            "model": model.state_dict(),
            "momentum": optimizer.state[model.weight]["momentum_buffer"],
            "bias": optimizer.state[model.bias]["momentum_buffer"],
        }
        saved = dcp.async_save(
            state, storage_writer=TieredWriter(fast, slow, step), async_stager=stager)
        saved = getattr(saved, "upload_completion", saved)
saved.result()
"""

LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from penstock.adapters.save.lightning import TieredCheckpointIO

class Module(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(20, 1)
    def training_step(self, batch, number):
        # Of the step, since a loader without a state begins its epoch anew when Lightning resumes.
        batch = torch.randn(8, 20, generator=torch.Generator().manual_seed(self.global_step))
        loss = (self.layer(batch) - 1).square().mean()
        say(self.global_step + 1, loss.detach())
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

torch.manual_seed(2)
data = torch.utils.data.DataLoader(torch.randn(240, 20), batch_size=8)
plugin = TieredCheckpointIO(fast, slow)
trainer = Trainer(
    max_epochs=1, accelerator="cpu", plugins=[plugin], logger=False, enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint(dirpath=slow, every_n_train_steps=3, save_top_k=-1)],
)
trainer.fit(Module(), data, ckpt_path=plugin.latest())
"""

TRANSFORMERS = """
import warnings
warnings.filterwarnings("ignore")
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from penstock.adapters.save.transformers import DrainCallback, last_valid_checkpoint

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(20, 1)
    def forward(self, x):
        loss = (self.layer(x) - 1).square().mean()
        self.last = loss.item()
        return {"loss": loss}

class Say(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        say(state.global_step, model.last)

torch.manual_seed(2)
data = [{"x": row} for row in torch.randn(240, 20)]
arguments = TrainingArguments(
    output_dir=fast, per_device_train_batch_size=8, max_steps=30, save_steps=3, use_cpu=True,
    report_to=[], disable_tqdm=True, logging_strategy="no", seed=5,
)
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[Say(), DrainCallback(slow)])
trainer.train(resume_from_checkpoint=last_valid_checkpoint(fast, slow))
"""

KERAS = """
import numpy as np, keras
from penstock.adapters.save.keras import TieredBackupAndRestore

keras.backend.clear_session()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.default_rng(2).normal(size=(64, 20)).astype("float32")

class Say(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        say(epoch + 1, logs["loss"])

model.fit(x, x[:, :1], epochs=30, batch_size=16, shuffle=False, verbose=0,
          callbacks=[TieredBackupAndRestore(slow, fast=fast), Say()])
"""

TENSORFLOW = """
import tensorflow as tf
from penstock.adapters.save.tensorflow import TieredCheckpointManager

tf.random.set_seed(1)
weights = tf.Variable(tf.random.stateless_normal((20, 1), seed=(1, 2)))
velocity = tf.Variable(tf.zeros((20, 1)))
step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, velocity=velocity, step=step)
manager = TieredCheckpointManager(checkpoint, slow, 3, fast=fast)
manager.restore_or_initialize()
while int(step) < 30:
    batch = tf.random.stateless_normal((8, 20), seed=(int(step), 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch @ weights - 1) ** 2)
    velocity.assign(0.9 * velocity + tape.gradient(loss, weights))
    weights.assign_sub(0.05 * velocity)
    step.assign_add(1)
    say(int(step), loss)
    if int(step) % 3 == 0:
        manager.save(int(step))
"""

ORBAX = """
import jax, jax.numpy as jnp
import orbax.checkpoint as ocp
from penstock.adapters.save.orbax import TieredSteps

steps = TieredSteps(fast, slow)
params = {"w": jnp.zeros((20, 1)), "b": jnp.zeros(1)}
found = steps.latest()
step = 0
if found is not None:
    with ocp.CheckpointManager(found.folder) as reader:
        params = reader.restore(found.step, args=ocp.args.StandardRestore(params))
    step = found.step
manager = ocp.CheckpointManager(fast, options=ocp.CheckpointManagerOptions(max_to_keep=4))

@jax.jit
def update(params, step):
    x = jax.random.normal(jax.random.key(step), (8, 20))
    loss, gradient = jax.value_and_grad(
        lambda p: jnp.mean((x @ p["w"] + p["b"] - 1) ** 2))(params)
    return loss, jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)

while step < 30:
    loss, params = update(params, step)
    step += 1
    say(step, loss)
    if step % 3 == 0:
        manager.save(step, args=ocp.args.StandardSave(params))
        steps.finished(manager)
"""

HOSTS = {
    "dcp": (DCP, ("torch",)),
    "lightning": (LIGHTNING, ("torch", "lightning")),
    "transformers": (TRANSFORMERS, ("torch", "transformers", "accelerate")),
    "keras": (KERAS, ("keras", "tensorflow")),
    "tensorflow": (TENSORFLOW, ("tensorflow",)),
    "orbax": (ORBAX, ("jax", "orbax.checkpoint")),
}


class Job:
    """Trainings in folders of their own; losses by step, as they have said them."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.program = folder, folder / "program.py"
        train = "def train(fast, slow):\n" + textwrap.indent(source, "    ")
        self.program.write_text(BEGIN + train + END)
        self.losses: dict[str, dict[int, float]] = {"whole": {}, "cut": {}}

    def run(self, *names: str, until: int | None = None) -> int:
        """To their end; or kills it, and its writer, as soon as the last has done the step `until`.
        The first step of the last."""
        folders = [self.folder / name for name in names]
        for folder in folders:
            (folder / "fast").mkdir(parents=True, exist_ok=True)
        job = subprocess.Popen(
            [sys.executable, self.program, *folders],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
                              "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "tensorflow",
                              "JAX_PLATFORMS": "cpu",
                              "HELD_AT": str((until or 100) + 5)},  # where a kill is late
        )  # fmt: skip
        assert job.stdout is not None
        first = 0
        for line in job.stdout:
            if not line.startswith("LOSS"):
                continue
            _, path, number, loss = line.split()
            name, step = Path(path).name, int(number)
            known = self.losses[name].setdefault(step, float(loss))
            assert known == float(loss), f"step {step}: {loss}, and before the kill {known}"
            if name == names[-1]:
                first = first or step
                if until is not None and step >= until:
                    self._await_save(folders[-1] / "fast")
                    job.send_signal(signal.SIGKILL)
                    break
        _, said = job.communicate(timeout=240)
        assert until is not None or job.returncode == 0, said[-3000:]
        return first

    def _await_save(self, fast: Path) -> None:
        """On a busy machine the first may still be under way."""
        end_s = time.monotonic() + 200
        while time.monotonic() < end_s and not find(LocalStore(fast)):
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("host", kinds(HOSTS, {"transformers": "lightning", "tensorflow": "keras"}))
def test_killed_at_random_it_goes_on_with_the_same_losses(host: str, tmp_path: Path) -> None:
    source, modules = HOSTS[host]
    for module in modules:
        needs(module.partition(".")[0])
    job = Job(tmp_path, source)
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"SEED={seed} repeats it")  # shown where it fails
    job.run("whole", "cut", until=random.Random(seed).randint(8, 20))
    assert sorted(job.losses["whole"]) == list(range(1, 31))
    assert len(job.losses["cut"]) < 30
    assert job.run("cut") > 1, "it began anew"
    assert job.losses["cut"] == job.losses["whole"]
    slow = tmp_path / "cut" / "slow"
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s and not find(LocalStore(slow)):
        time.sleep(0.1)
    assert find(LocalStore(slow)), "nothing was drained"
    assert damaged(tmp_path / "cut" / "fast") == {}


def damaged(tier: Path) -> dict[str, tuple[str, ...]]:
    """What is wrong with which checkpoint.  The drain outlives the training and lets some go while
    they are read: what is not found a second time was removed, its index or its folder first."""
    store = LocalStore(tier)
    verdicts = [verify(one, "full") for one in find(store)]
    left = {one.name for one in find(store)}
    return {
        one.checkpoint.name: one.problems
        for one in verdicts
        if not one.is_whole and one.checkpoint.name in left
    }


TWICE = """
import sys
import keras, numpy as np
from penstock.adapters.save.keras import TieredBackupAndRestore
from penstock.errors import SaveError
from penstock.save import Checkpointer

class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt

x, seen = np.ones((8, 3), "float32"), []
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for more in ([Interrupt()], []):
    backup = TieredBackupAndRestore(sys.argv[1])
    seen.append(backup)  # as a notebook keeps what it has shown
    try:
        history = model.fit(x, x[:, :1], epochs=3, verbose=0, callbacks=[backup, *more])
    except KeyboardInterrupt:
        pass
print("epochs", history.epoch)
Checkpointer(sys.argv[1]).close()
"""


@pytest.mark.slow
def test_kerass_fit_begins_again_in_the_process_where_it_was_interrupted(tmp_path: Path) -> None:
    for module in ("keras", "torch"):
        needs(module)
    done = subprocess.run(
        [sys.executable, "-c", TWICE, tmp_path], capture_output=True, text=True, timeout=240,
        env=os.environ | {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "epochs [1, 2]" in done.stdout


def test_a_full_disk_is_said_through_dcp_and_another_job_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="DCP is torch's")
    import torch.distributed.checkpoint as dcp

    from penstock.adapters.save.torch import TieredWriter

    tier = tmp_path / "tier"
    tier.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tier]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs can be mounted by root only")
    try:
        dcp.save({"w": torch.ones(1000)}, storage_writer=TieredWriter(tier, None, 1))
        with pytest.raises(
            BaseException, match=r"no room for the checkpoint \([\d,]+ bytes are free\)"
        ):
            dcp.save({"w": torch.ones(2 << 20)}, storage_writer=TieredWriter(tier, None, 2))
        program = f"""
from penstock.adapters.save.torch import TieredWriter
TieredWriter({str(tier)!r}, None, 3)
"""
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "another job has this folder" in other.stderr
    finally:
        subprocess.run(["umount", "-l", tier], check=True)


AGAIN_BY_DCP = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from penstock.adapters.save.torch import TieredWriter

class Once:
    n_pickled = 0

    def __reduce__(self):
        Once.n_pickled += 1
        if Once.n_pickled == 1:
            raise RuntimeError("not now")
        return int, ()

def save(step, kind=TieredWriter):
    writer = kind(sys.argv[1], None, step)
    dcp.save({"w": torch.ones(10), "x": Once()}, storage_writer=writer, no_dist=True)

try:
    save(1)
except BaseException as error:
    assert "not now" in str(error), error
    save(1)

class Ended(TieredWriter):  # as where another rank fails: nobody tells the writer
    def finish(self, metadata, results):
        raise RuntimeError("rank 1 has failed")

try:
    save(2, Ended)
except BaseException as error:
    assert "rank 1 has failed" in str(error), error
    save(2)
"""


def test_a_dcp_save_that_failed_is_made_again_where_its_error_is_caught(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="DCP is torch's")
    command = [sys.executable, "-c", AGAIN_BY_DCP, tmp_path / "fast"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    names = sorted(path.name for path in (tmp_path / "fast").glob("[!.]*"))
    assert names == ["step-00000001", "step-00000002"]


FULL_TRAINER = """
import os, shutil, sys, time, warnings
warnings.filterwarnings("ignore")
from pathlib import Path
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from penstock.adapters.save.transformers import (
    DrainCallback, full_said, last_valid_checkpoint
)
from penstock.errors import TierFull
from penstock.save.find.formats import find
from penstock.save.drain.retention import Keep
from penstock.places.stores import LocalStore

fast, slow = Path(sys.argv[1]), Path(sys.argv[2])

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(50_000, 1)
    def forward(self, x):
        loss = (self.layer(x) - 1).square().mean()
        losses.append(loss.item())
        return {"loss": loss}

class Fill(TrainerCallback):  # another program, between the look for room and the save
    def __init__(self, step, left_bytes):
        self.step, self.left_bytes = step, left_bytes
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            shutil.rmtree(fast / f"checkpoint-{self.step}", ignore_errors=True)  # of the last time
            found = os.statvfs(fast)
            n_bytes = found.f_bavail * found.f_frsize - self.left_bytes
            with (fast.parent / "filler").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, n_bytes)

torch.manual_seed(2)
data = [{"x": row} for row in torch.randn(24, 50_000)]

def train(steps, **options):
    more = options.pop("callbacks", [])
    arguments = TrainingArguments(
        output_dir=fast, per_device_train_batch_size=8, max_steps=steps, save_steps=1,
        use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", seed=5,
    )
    callbacks = [DrainCallback(slow, **options), *more]
    trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=callbacks)
    with full_said(fast):
        trainer.train(resume_from_checkpoint=last_valid_checkpoint(fast, slow))

def full(steps, **options):
    try:
        train(steps, **options)
    except TierFull as error:
        return str(error)
    raise AssertionError("the tier was not full")

losses = []
keep = Keep(fast=1)
train(2, keep=keep)
while (fast / "checkpoint-1").exists():  # the drain lets it go
    time.sleep(0.05)
size = sum(path.stat().st_size for path in Path(last_valid_checkpoint(fast)).iterdir())
for eighths in (0, 1, 2, 4, 6, 7):
    said = full(3, keep=keep, callbacks=[Fill(3, size * eighths // 8)])
    assert f"{fast}: no room for the checkpoint (" in said, said
    assert last_valid_checkpoint(fast, slow) == f"{fast}/checkpoint-2", eighths
    (fast.parent / "filler").unlink()
losses.clear()
train(4, keep=keep)  # the third step again, and its folder
assert len(losses) == 2
assert last_valid_checkpoint(fast, slow) == f"{fast}/checkpoint-4"
left = [one.name for one in find(LocalStore(fast)) if one.problem]
assert not left, left
# With rules the drain makes room, however many are saved.
train(14, keep=keep)
assert last_valid_checkpoint(fast, slow) == f"{fast}/checkpoint-14"
while len(list(fast.glob("checkpoint-*"))) > 1:  # what is left there goes too
    time.sleep(0.05)
# Where nothing may go the training ends before it writes, or goes on without.
fast, slow = fast.parent / "other", slow.parent / "other"
said = full(99)
assert "more than are free; use a larger tier" in said, said
newest = last_valid_checkpoint(fast)
n = int(newest.rpartition("-")[2])
assert f"no room for checkpoint-{n + 1}" in said, said
assert not (fast / f"checkpoint-{n + 1}").exists()
train(n + 2, on_full="skip")
assert last_valid_checkpoint(fast, slow) == newest
print("done", n)
"""


@pytest.mark.slow
def test_a_full_disk_is_said_through_the_trainer_and_the_training_goes_on_after_it(
    tmp_path: Path,
) -> None:
    for library in ("torch", "transformers", "accelerate"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    tier = tmp_path / "tier"
    tier.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tier]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs can be mounted by root only")
    try:
        finished = subprocess.run(
            [sys.executable, "-c", FULL_TRAINER, tier / "fast", tmp_path / "slow"],
            capture_output=True, text=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr[-3000:]
        assert "done" in finished.stdout
    finally:
        subprocess.run(["umount", "-l", tier], check=True)


# Each world is forked from a process that has imported torch: a launcher's ranks would do it nine
# times.  test_checkpointer_ranks.py has a launcher.
SHARDED = """
import os, socket, sys, traceback
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros
from penstock.adapters.save.torch import TieredReader, TieredWriter

fast = sys.argv[1]

def take_part(what):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0 * 5).reshape(24, 5)
    if what == "save":
        for step in (1, 2):
            dcp.save({"w": distribute_tensor(whole * step, mesh, [Shard(0)])},
                     storage_writer=TieredWriter(fast, None, step))
    else:
        state = {"w": zeros(24, 5, device_mesh=mesh, placements=[Shard(1)])}
        reader = TieredReader.latest(fast)
        dcp.load(state, storage_reader=reader)
        assert torch.equal(state["w"].full_tensor(), whole * 2), state["w"].full_tensor()
        os.write(1, f"one of {dist.get_world_size()} has step {reader.step};".encode())
    dist.destroy_process_group()

for n, what in ((4, "save"), (2, "load"), (1, "load")):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(n):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{n}", "LOCAL_RANK": f"{rank}",
                           "LOCAL_WORLD_SIZE": f"{n}", "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": f"{port}"}
            try:
                take_part(what)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    ended = [os.waitpid(rank, 0)[1] for rank in ranks]
    assert ended == [0] * n, (what, ended)
"""


@pytest.mark.slow
def test_sharded_states_of_four_ranks_are_read_by_two_and_by_one(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="DCP is torch's")
    finished = subprocess.run(
        [sys.executable, "-c", SHARDED, tmp_path / "fast"],
        capture_output=True, text=True, timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    there = sorted(path.name for path in (tmp_path / "fast").iterdir() if path.name[0] != ".")
    assert there == ["step-00000001", "step-00000002"]
    assert all(verify(one, "full").is_whole for one in find(LocalStore(tmp_path / "fast")))
    assert finished.stdout.count("one of 2 has step 2") == 2
    assert finished.stdout.count("one of 1 has step 2") == 1


RANKS_OF_TRAINER = """
import os, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from transformers import Trainer, TrainingArguments
from penstock.adapters.save.transformers import DrainCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 1)
    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}

class Late(Trainer):
    def _save_rng_state(self, output_dir):
        if self.args.process_index == 1:
            time.sleep(3)  # as a slow file system does
        super()._save_rng_state(output_dir)

data = [{"x": row} for row in torch.randn(24, 20)]
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, max_steps=1, save_steps=1, use_cpu=True,
    report_to=[], disable_tqdm=True, logging_strategy="no",
)
Late(Model(), arguments, train_dataset=data, callbacks=[DrainCallback(sys.argv[2])]).train()
"""


@pytest.mark.slow
def test_a_home_is_spelled_out_before_a_trainer_s_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from penstock.adapters.save.transformers import last_valid_checkpoint

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert last_valid_checkpoint("~/fast") is None
    assert [path.name for path in tmp_path.iterdir()] == ["fast"]


@pytest.mark.slow
def test_what_every_rank_of_a_trainer_saves_is_in_the_manifest(tmp_path: Path) -> None:
    needs("transformers")
    program = tmp_path / "train.py"
    program.write_text(RANKS_OF_TRAINER)
    words = ["--standalone", "--nproc-per-node=2", program, tmp_path / "fast", tmp_path / "slow"]
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        capture_output=True, text=True, timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    [one] = find(LocalStore(tmp_path / "fast"))
    assert one.manifest is not None
    known = {file.name for file in one.manifest.files}
    assert {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"} <= known
    assert not verify(one, "full").problems
