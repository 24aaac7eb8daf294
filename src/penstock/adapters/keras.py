"""Mark steps of Keras' fit on any backend and Keras' saves; make a callback for recording batches.

A step is a call of on_train_batch_end; with steps_per_execution a step is several updates.  On
TensorFlow the batch is fetched inside the step's graph, where the native recorder sees the fetch.
Keras is imported only to make the callback, by a user who has Keras.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters import marks
from penstock.adapters.marks import quietly, replace, thread, wrap, wrap_save
from penstock.errors import MissingDependency, RecorderError
from penstock.recording import recorder

__all__ = ["PATCHES", "window_callback"]


def _patch_callbacks(module: ModuleType) -> None:
    for name, before, after in (
        ("on_epoch_begin", _begin_epoch, None),
        ("on_train_batch_begin", _begin_batch, None),
        ("on_train_batch_end", None, _end_batch),
        ("on_epoch_end", None, _end_epoch),
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
def _begin_epoch() -> None:
    """Begin an epoch on TensorFlow, where the graph hides the loader's pass.

    On other backends the loader marks the pass.
    """
    backend = sys.modules.get("keras.src.backend.config")
    if backend is not None and backend.backend() == "tensorflow":
        thread.epoch = marks.begin_pass()


@quietly
def _end_epoch() -> None:
    epoch, thread.epoch = thread.epoch, None
    if epoch is not None:
        epoch.end()


@quietly
def _begin_batch() -> None:
    if thread.step is None or not thread.step.is_ours():
        marks.begin_step(thread)


@quietly
def _end_batch() -> None:
    """End a batch after the callbacks, whose time and saves belong to the batch's step."""
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


def window_callback(
    folder: str | os.PathLike[str], first_batch: int, last_batch: int, budget_bytes: int = 0
) -> Any:
    """Return a Keras callback that records into `folder` from first_batch to last_batch, inclusive.

    Batches are counted from 1 over all epochs, as in TensorBoard's profile_batch.  If a window
    cannot begin, the callback warns and the training continues.  Not needed under `penstock run`.
    Raises MissingDependency without Keras, RecorderError for an empty range.
    """
    if not 1 <= first_batch <= last_batch:
        raise RecorderError(
            f"batches {first_batch} to {last_batch} are none; the first batch of a training is 1"
        )
    try:
        from keras.callbacks import Callback
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a callback for Keras needs it: pip install 'penstock[frameworks]'"
        ) from error
    window = _Window(folder, first_batch, last_batch, budget_bytes)

    class WindowCallback(Callback):  # type: ignore[misc]  # Keras is not type-checked here
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            window.batch_begins()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            window.batch_ended()

        def on_train_end(self, logs: Any = None) -> None:
            window.stop()

    return WindowCallback()


class _Window:
    """Opens and closes a window by counting batches."""

    def __init__(
        self, folder: str | os.PathLike[str], first_batch: int, last_batch: int, budget_bytes: int
    ) -> None:
        self.folder = folder
        self.first_batch = first_batch
        self.last_batch = last_batch
        self.budget_bytes = budget_bytes
        self.batch = 0  # the batch under way, or the latest
        self.open: recorder.record | None = None

    def batch_begins(self) -> None:
        self.batch += 1
        if self.batch != self.first_batch:
            return
        try:
            self.open = recorder.record(self.folder, self.budget_bytes)
        except RecorderError as error:
            warnings.warn(f"batches are not recorded: {error}", stacklevel=2)
            return
        _begin_batch()

    def batch_ended(self) -> None:
        if self.batch >= self.last_batch:
            _end_batch()  # Keras calls the user's other callbacks after the window's
            self.stop()

    def stop(self) -> None:
        window, self.open = self.open, None
        if window is None:
            return
        try:
            window.stop()
        except RecorderError as error:
            warnings.warn(f"the window did not end well: {error}", stacklevel=2)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "keras.src.callbacks.callback_list": _patch_callbacks,
    "keras.src.saving.saving_api": _patch_saving,
}
