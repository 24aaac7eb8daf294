"""Write and load checkpoints of many frameworks, for soak_units.py.

Each save has a number and fills all tensors with the number.  A load returns the set of all numbers
found: exactly one number if the checkpoint is of a single save.  The module knows frameworks, not
Penstock.  `ready` imports the frameworks once, in a process that only forks afterwards.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "LAYOUTS", "Layout", "ready"]

N_NUMBERS = 128_000  # per tensor: 512 kB
SIDE = 358  # of a square weight of about as many numbers

Pause = Callable[[], None]  # between two files, where the program computes


@dataclass(frozen=True, slots=True)
class Layout:
    """The way one framework saves.

    by: the writer of the files.  opened: makes the objects to save, once per program; returns
    the function `save`.  save: (tier, step, number, pause).  load: returns the numbers in the
    checkpoint at a path printed by `penstock save recover`; raises if a part is missing or cannot
    be loaded.  places: patterns of the paths of checkpoints in a tier.  is_in_place: each save has
    equal names.  n_ranks: processes that save together.
    """

    name: str
    family: str
    by: str
    opened: Callable[[], Callable[[Path, int, int, Pause], None]]
    load: Callable[[Path], set[float]]
    places: str
    is_in_place: bool = False
    n_ranks: int = 1

    def paths(self, tier: Path) -> list[Path]:
        """Return the possible paths of checkpoints in a tier."""
        return sorted(
            path for path in tier.glob(self.places)
            if not path.name.endswith((".part", ".json", ".half", ".tmp"))
        )  # fmt: skip


# Packages to import before the forks: FAMILIES for a whole family, PACKAGES by the layout's `by`.
# A family is small, as each fork costs CPU time for each page of its memory.
FAMILIES = {
    "torch": ("torch",),
    "hugging face": ("torch",),
    "keras": ("torch",),
    "tensorflow": ("tensorflow",),
    "jax": ("jax",),
}
PACKAGES = {
    "transformers": ("safetensors.torch", "transformers", "transformers.trainer"),
    "safetensors": ("safetensors.torch",),
    "accelerate": ("accelerate", "safetensors.torch"),
    "lightning": ("lightning.pytorch",),
    "torch.distributed, 2 ranks": ("torch.distributed.checkpoint", "torch.distributed.fsdp",
                                   "torch.distributed.device_mesh"),
    "keras": ("keras", "h5py"),
    "orbax": ("orbax.checkpoint",),
}  # fmt: skip


def ready(family: str, layouts: Iterable[Layout]) -> str:
    """Import the frameworks of these layouts of a family.  Return the missing package, or an empty
    string."""
    os.environ |= {
        "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
        "TF_ENABLE_ONEDNN_OPTS": "0", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1",
    }  # fmt: skip
    import warnings

    warnings.simplefilter("ignore")
    more = {layout.by: PACKAGES.get(layout.by, ()) for layout in layouts}.values()
    for name in (*FAMILIES[family], *(name for names in more for name in names)):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name}: {error}"
    if "torch" in FAMILIES[family]:
        import torch

        torch.set_num_threads(1)
        torch.set_num_interop_threads(1)
    return ""


def numbers(values: Iterable[Any]) -> set[float]:
    """Return the set of all numbers in the arrays."""
    import numpy as np

    distinct_values = set[float]()
    for value in values:
        array = value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)
        distinct_values |= {float(number) for number in np.unique(array)}
    return distinct_values


# --- torch.save -----------------------------------------------------------------------------------


def _tensor(number: int, n: int = N_NUMBERS) -> Any:
    import torch

    return torch.full((n,), float(number))


def _torch_save(path: Path, number: int, **more: Any) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"a": _tensor(number), "b": {"c": _tensor(number, 1000)}}
    torch.save({"state": state, **more}, path)


def _torch_load(path: Path) -> set[float]:
    import torch

    state = torch.load(path, weights_only=False)["state"]
    return numbers((state["a"], state["b"]["c"]))


ROLES = ("model", "optim", "ema")


def _plain() -> Callable[[Path, int, int, Pause], None]:
    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        for role in ROLES:
            _torch_save(tier / f"{role}-{step}.pt", number)
            pause()

    return save


def _load_plain(path: Path) -> set[float]:
    match = re.fullmatch(r"(?:model|optim|ema)(-.+)", path.name)
    assert match, path
    return set[float]().union(*(_torch_load(path.with_name(f"{role}{match[1]}")) for role in ROLES))


PAIR = ("model", "optim")


def _pair() -> Callable[[Path, int, int, Pause], None]:
    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        for role in PAIR:
            _torch_save(tier / f"{role}.pt", number)
            pause()

    return save


def _load_pair(path: Path) -> set[float]:
    match = re.fullmatch(r"(?:model|optim)((?:\.\d+)?\.pt)", path.name)
    assert match, path
    return set[float]().union(*(_torch_load(path.with_name(f"{role}{match[1]}")) for role in PAIR))


IN_FOLDER = ("model.pt", "optimizer.pt", "rng_state.pt")


def _folder() -> Callable[[Path, int, int, Pause], None]:
    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        for name in IN_FOLDER:
            _torch_save(tier / f"step_{step}" / name, number)
            pause()
        (tier / f"step_{step}" / "args.json").write_text(json.dumps({"number": number}))

    return save


def _load_folder(path: Path) -> set[float]:
    distinct_values = {float(json.loads((path / "args.json").read_text())["number"])}
    return distinct_values.union(*(_torch_load(path / name) for name in IN_FOLDER))


def _deepspeed() -> Callable[[Path, int, int, Pause], None]:
    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        folder = tier / f"global_step{step}"
        engine_state = {
            "dp_world_size": 2,
            "mp_world_size": 1,
            "param_shapes": [{}],
            "global_steps": step,
        }
        _torch_save(folder / "mp_rank_00_model_states.pt", number, **engine_state)
        for rank in range(2):
            pause()
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            _torch_save(folder / name, number)
        pause()
        (tier / "latest").write_text(f"global_step{step}")

    return save


def _load_deepspeed(path: Path) -> set[float]:
    parts = ["mp_rank_00_model_states.pt"]
    parts += [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)]
    return set[float]().union(*(_torch_load(path / name) for name in parts))


def _megatron() -> Callable[[Path, int, int, Pause], None]:
    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        for rank in range(2):
            path = tier / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
            _torch_save(path, number, iteration=step)
            pause()
        (tier / "latest_checkpointed_iteration.txt").write_text(str(step))

    return save


def _load_megatron(path: Path) -> set[float]:
    parts = [f"mp_rank_{rank:02d}/model_optim_rng.pt" for rank in range(2)]
    return set[float]().union(*(_torch_load(path / name) for name in parts))


# --- Hugging Face, Accelerate, Lightning ----------------------------------------------------------


def _module() -> Any:
    import torch

    layers = [torch.nn.Linear(SIDE, SIDE) for _ in range(4)]
    return torch.nn.Sequential(*layers)


def _pretrained() -> Any:
    from transformers import PretrainedConfig, PreTrainedModel

    class Config(PretrainedConfig):
        model_type = "soak"

    class TrainerModel(PreTrainedModel):
        config_class = Config
        base_model_prefix = "inner"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.inner = _module()
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            pass

        def forward(self, x: Any, labels: Any = None) -> Any:
            loss = self.inner(x).mean()
            return {"loss": loss}

    return TrainerModel(Config())


def _fill(module: Any, number: int, optimizer: Any = None) -> None:
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float(number))
        for state in (optimizer.state if optimizer is not None else {}).values():
            for value in state.values():
                if torch.is_tensor(value):
                    value.fill_(float(number))


def _step(module: Any, optimizer: Any) -> None:
    """Run one optimizer step, so that the optimizer has a state."""
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    optimizer.zero_grad()


def _safetensors(path: Path) -> set[float]:
    from safetensors.torch import load_file

    return numbers(load_file(path).values())


def _optimizer_of(path: Path) -> set[float]:
    import torch

    state = torch.load(path, weights_only=False)["state"]
    return numbers(
        value for parameter_state in state.values() for value in parameter_state.values()
    )


def _trainer() -> Callable[[Path, int, int, Pause], None]:
    """The Trainer's own _save_checkpoint, which writes all parts in the Trainer's order."""
    import tempfile

    import torch
    from transformers import Trainer, TrainingArguments

    model = _pretrained()
    arguments = TrainingArguments(output_dir=tempfile.gettempdir(), use_cpu=True, report_to=[])
    trainer = Trainer(model=model, args=arguments)
    trainer.optimizer = torch.optim.AdamW(model.parameters())
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: 1.0)
    _step(model, trainer.optimizer)

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill(model, number, trainer.optimizer)
        arguments.output_dir = os.fspath(tier / "out")
        trainer.state.global_step = step
        trainer.state.best_metric = float(number)
        trainer._save_checkpoint(model, None)

    return save


def _load_trainer(path: Path) -> set[float]:
    import torch

    distinct_values = {float(json.loads((path / "trainer_state.json").read_text())["best_metric"])}
    torch.load(path / "scheduler.pt", weights_only=False)
    torch.load(path / "rng_state.pth", weights_only=False)
    json.loads((path / "config.json").read_text())
    return (
        distinct_values
        | _safetensors(path / "model.safetensors")
        | _optimizer_of(path / "optimizer.pt")
    )


def _hf_index() -> Callable[[Path, int, int, Pause], None]:
    model = _pretrained()

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill(model, number)
        model.save_pretrained(tier / "out", max_shard_size="600KB")

    return save


def _load_hf_index(path: Path) -> set[float]:
    index = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    json.loads((path / "config.json").read_text())
    return set[float]().union(*(_safetensors(path / name) for name in set(index.values())))


SHARDS = tuple(f"model-{n:05d}-of-00004.safetensors" for n in (1, 2, 3, 4))


def _hf_shards() -> Callable[[Path, int, int, Pause], None]:
    from safetensors.torch import save_file

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        (tier / "out").mkdir(exist_ok=True)
        (tier / "out" / "config.json").write_text('{"model_type": "soak"}')
        for name in SHARDS:
            save_file({name[6:11]: _tensor(number)}, tier / "out" / name)
            pause()

    return save


def _load_hf_shards(path: Path) -> set[float]:
    json.loads((path / "config.json").read_text())
    return set[float]().union(*(_safetensors(path / name) for name in SHARDS))


def _accelerate() -> Callable[[Path, int, int, Pause], None]:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    module = _module()
    module, optimizer = accelerator.prepare(module, torch.optim.AdamW(module.parameters()))
    _step(module, optimizer)

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill(module, number, optimizer)
        accelerator.save_state(os.fspath(tier / f"checkpoint_{step}"))

    return save


def _load_accelerate(path: Path) -> set[float]:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    module = _module()
    module, optimizer = accelerator.prepare(module, torch.optim.AdamW(module.parameters()))
    _step(module, optimizer)
    accelerator.load_state(os.fspath(path))
    states = (
        value for parameter_state in optimizer.state.values() for value in parameter_state.values()
    )
    return numbers([*module.parameters(), *states])


def _lightning() -> Callable[[Path, int, int, Pause], None]:
    import logging

    import lightning.pytorch as pl
    import torch
    from lightning.fabric.plugins.environments import LightningEnvironment

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class LightningModel(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _module()

        def training_step(self, batch: Any, place: int) -> Any:
            return self.inner(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    model = LightningModel()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, SIDE)))
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, max_steps=1, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False,
        plugins=[LightningEnvironment()],  # a search for others starts a daemon of MPI
    )  # fmt: skip
    trainer.fit(model, data)

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill(model, number, trainer.optimizers[0])
        trainer.save_checkpoint(tier / f"epoch=0-step={step}.ckpt")

    return save


def _load_lightning(path: Path) -> set[float]:
    import torch

    checkpoint = torch.load(path, weights_only=False)
    states = checkpoint["optimizer_states"][0]["state"]
    values = (value for parameter_state in states.values() for value in parameter_state.values())
    return numbers([*checkpoint["state_dict"].values(), *values])


# --- DCP by FSDP2 ---------------------------------------------------------------------------------


def _dcp() -> Callable[[Path, int, int, Pause], None]:
    """Save as one of two ranks, both started by soak_units.py, with the rank in the environment."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, store = int(os.environ["SOAK_RANK"]), os.environ["SOAK_STORE"]
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    module = _module()
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    _ = torch

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill_sharded(module, number)
        pause()
        dcp.save(module.state_dict(), checkpoint_id=tier / f"step-{step}")

    return save


def _fill_sharded(module: Any, number: int) -> None:
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.to_local().fill_(float(number))


def _load_dcp(path: Path) -> set[float]:
    import torch.distributed.checkpoint as dcp

    state = _module().state_dict()
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return numbers(state.values())


# --- Keras, TensorFlow, Orbax ---------------------------------------------------------------------


def _keras_model() -> Any:
    import keras

    layers = [keras.layers.Dense(SIDE) for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((SIDE,)), *layers])
    model.compile("adam", "mse")
    return model


def _fill_keras(model: Any, number: int) -> None:
    import numpy as np

    model.set_weights([np.full(weight.shape, number, "f4") for weight in model.get_weights()])


def _keras_h5() -> Callable[[Path, int, int, Pause], None]:
    model = _keras_model()

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill_keras(model, number)
        model.save_weights(tier / "model.weights.h5")

    return save


def _load_keras_h5(path: Path) -> set[float]:
    model = _keras_model()
    model.load_weights(path)
    return numbers(model.get_weights())


def _keras() -> Callable[[Path, int, int, Pause], None]:
    model = _keras_model()

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        _fill_keras(model, number)
        model.save(tier / f"model-{step}.keras")

    return save


def _load_keras(path: Path) -> set[float]:
    import keras

    return numbers(keras.models.load_model(path).get_weights())


def _tensorflow() -> Callable[[Path, int, int, Pause], None]:
    import tensorflow as tf

    kept = [tf.Variable(tf.zeros([N_NUMBERS])) for _ in range(3)]
    made = tf.train.Checkpoint(a=kept[0], b=kept[1], c=kept[2])
    managers: dict[Path, Any] = {}

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        for variable in kept:
            variable.assign(tf.fill([N_NUMBERS], float(number)))
        if tier not in managers:
            managers[tier] = tf.train.CheckpointManager(made, os.fspath(tier), max_to_keep=None)
        managers[tier].save(checkpoint_number=step)

    return save


def _load_tensorflow(path: Path) -> set[float]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(os.fspath(path).removesuffix(".index"))
    names = [name for name in reader.get_variable_to_shape_map() if "VARIABLE_VALUE" in name]
    assert len(names) >= 3, names
    return numbers(reader.get_tensor(name) for name in names if "save_counter" not in name)


def _saved_model(is_in_place: bool) -> Callable[[], Callable[[Path, int, int, Pause], None]]:
    def opened() -> Callable[[Path, int, int, Pause], None]:
        import tensorflow as tf

        module = tf.Module()
        module.a = tf.Variable(tf.zeros([N_NUMBERS]))
        module.b = tf.Variable(tf.zeros([N_NUMBERS]))
        given = [tf.TensorSpec([], tf.float32)]
        module.run = tf.function(lambda x: x + module.a[0], input_signature=given)

        def save(tier: Path, step: int, number: int, pause: Pause) -> None:
            for variable in (module.a, module.b):
                variable.assign(tf.fill([N_NUMBERS], float(number)))
            name = "saved" if is_in_place else f"export/{step}"
            tf.saved_model.save(module, os.fspath(tier / name))

        return save

    return opened


def _load_saved_model(path: Path) -> set[float]:
    import tensorflow as tf

    module = tf.saved_model.load(os.fspath(path))
    return numbers((module.a, module.b))


def _orbax() -> Callable[[Path, int, int, Pause], None]:
    import numpy as np
    import orbax.checkpoint as ocp

    managers: dict[Path, Any] = {}

    def save(tier: Path, step: int, number: int, pause: Pause) -> None:
        if tier not in managers:
            how = ocp.CheckpointManagerOptions(
                max_to_keep=None, enable_async_checkpointing=False, create=True
            )
            with suppress(FileNotFoundError):  # a step went as the manager listed the steps
                managers[tier] = ocp.CheckpointManager((tier / "run").absolute(), options=how)
            if tier not in managers:
                managers[tier] = ocp.CheckpointManager((tier / "run").absolute(), options=how)
        state = {name: np.full(N_NUMBERS, number, "f4") for name in ("a", "b", "c")}
        managers[tier].save(step, args=ocp.args.StandardSave(state), force=True)

    return save


def _load_orbax(path: Path) -> set[float]:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as loading:
        return numbers(loading.restore(path.absolute() / "default").values())


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("three files", "torch", "torch.save", _plain, _load_plain, "model-*.pt"),
        Layout("two files, same names", "torch", "torch.save", _pair, _load_pair, "model*.pt",
               is_in_place=True),
        Layout("folder", "torch", "torch.save", _folder, _load_folder, "step_*"),
        Layout("Trainer", "hugging face", "transformers", _trainer, _load_trainer,
               "out*/checkpoint-*"),
        Layout("HF shards, index", "hugging face", "transformers", _hf_index, _load_hf_index,
               "out*", is_in_place=True),
        Layout("HF shards, no index", "torch", "safetensors", _hf_shards, _load_hf_shards, "out*",
               is_in_place=True),
        Layout("Accelerate", "hugging face", "accelerate", _accelerate, _load_accelerate,
               "checkpoint_*"),
        Layout("Lightning", "hugging face", "lightning", _lightning, _load_lightning,
               "epoch=*.ckpt"),
        Layout("DCP, FSDP2", "torch", "torch.distributed, 2 ranks", _dcp, _load_dcp, "step-*",
               n_ranks=2),
        Layout("DeepSpeed-like", "torch", "torch.save", _deepspeed, _load_deepspeed,
               "global_step*"),
        Layout("Megatron-like", "torch", "torch.save", _megatron, _load_megatron, "iter_*"),
        Layout("Keras .weights.h5", "keras", "keras", _keras_h5, _load_keras_h5,
               "model*.weights.h5", is_in_place=True),
        Layout("Keras .keras", "keras", "keras", _keras, _load_keras, "model-*.keras"),
        Layout("TF checkpoint", "tensorflow", "tensorflow", _tensorflow, _load_tensorflow,
               "ckpt-*.index"),
        Layout("SavedModel", "tensorflow", "tensorflow", _saved_model(False), _load_saved_model,
               "export*/*"),
        Layout("SavedModel, same name", "tensorflow", "tensorflow", _saved_model(True),
               _load_saved_model, "saved*", is_in_place=True),
        Layout("Orbax", "jax", "orbax", _orbax, _load_orbax, "run*/[0-9]*"),
    )
}  # fmt: skip
