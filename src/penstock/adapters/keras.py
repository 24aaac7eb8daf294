"""Steps of Keras' fit, on any backend, and its saves.  Imports nothing of it.

A step is one call of on_train_batch_end; with steps_per_execution that is several updates.  On
TensorFlow the batch is fetched inside the step's graph, which the native recorder sees.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock import recorder
from penstock.adapters import marks
from penstock.adapters.marks import quietly, replace, thread, wrap, wrap_save

__all__ = ["PATCHES"]


def _patch_callbacks(module: ModuleType) -> None:
    for name, before, after in (
        ("on_train_batch_begin", _begin_batch, None),
        ("on_train_batch_end", None, _end_batch),
        ("on_train_end", _end_training, None),
    ):
        wrap("keras", module, f"CallbackList.{name}", functools.partial(_around, before, after))


def _around(
    before: Callable[[], None] | None,
    after: Callable[[], None] | None,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        is_recording = recorder.is_recording()
        if is_recording and before is not None:
            before()
        result = original(*args, **kwargs)
        if is_recording and after is not None:
            after()
        return result

    return called


@quietly
def _begin_batch() -> None:
    if thread.step is None or not thread.step.is_ours():
        marks.begin_step(thread)


@quietly
def _end_batch() -> None:
    """After the callbacks of the batch: their time and their saves belong to its step."""
    marks.end_step(thread)


@quietly
def _end_training() -> None:
    marks.drop_step(thread)


def _patch_saving(module: ModuleType) -> None:
    for function, span in (
        ("save_model", "checkpoint"),
        ("save_weights", "checkpoint"),
        ("load_model", "restore"),
        ("load_weights", "restore"),
    ):
        shown = [name for name in sys.modules if name.startswith("keras.")]
        replace("keras", module, function, wrap_save(span), *shown)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "keras.src.callbacks.callback_list": _patch_callbacks,
    "keras.src.saving.saving_api": _patch_saving,
}
