"""Mark checkpoints of trainers based on torch: Lightning, Hugging Face's Trainer, Accelerate.

The trainers' loaders and optimizers are torch's, and torch's adapter marks waits and steps.  Here a
save of a trainer is a single checkpoint, whatever files and libraries the save uses.  Imports none
of the trainers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

from penstock.adapters.marks import replace, wrap, wrap_save

__all__ = ["PATCHES"]


def _patch_methods(adapter: str, methods: dict[str, str], module: ModuleType) -> None:
    """Wrap methods of a module; methods: path in the module → name of the span."""
    for path, span in methods.items():
        wrap(adapter, module, path, wrap_save(span))


def _patch_safetensors(module: ModuleType) -> None:
    replace("safetensors", module, "save_file", wrap_save("checkpoint"))
    replace("safetensors", module, "load_file", wrap_save("restore"))
    replace("safetensors", module, "load_model", wrap_save("restore"))


_LIGHTNING = {"Trainer.save_checkpoint": "checkpoint"}
_TRANSFORMERS = {
    "Trainer._save_checkpoint": "checkpoint",
    "Trainer.save_model": "checkpoint",
    "Trainer._load_from_checkpoint": "restore",
}
_MODELS = {"PreTrainedModel.save_pretrained": "checkpoint"}
_ACCELERATE = {
    "Accelerator.save_state": "checkpoint",
    "Accelerator.save_model": "checkpoint",
    "Accelerator.load_state": "restore",
}

PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "lightning.pytorch.trainer.trainer": functools.partial(_patch_methods, "lightning", _LIGHTNING),
    "pytorch_lightning.trainer.trainer": functools.partial(_patch_methods, "lightning", _LIGHTNING),
    "transformers.trainer": functools.partial(_patch_methods, "transformers", _TRANSFORMERS),
    "transformers.modeling_utils": functools.partial(_patch_methods, "transformers", _MODELS),
    "accelerate.accelerator": functools.partial(_patch_methods, "accelerate", _ACCELERATE),
    "safetensors.torch": _patch_safetensors,
}
