"""Keras' fit that survives being killed: as keras.callbacks.BackupAndRestore, through two tiers.

    model.fit(data, callbacks=[TieredBackupAndRestore(backup_dir=slow, fast=fast)])

Keras' own callback overwrites its only file in place.  Ours writes each backup anew, from a copy
in memory, in another process, on any backend.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import keras

from penstock.errors import SaveError
from penstock.save.drain.retention import Keep
from penstock.save.training.checkpointer import Checkpointer, opened

__all__ = ["TieredBackupAndRestore"]

AnyPath = str | os.PathLike[str]

_ours: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


class TieredBackupAndRestore(keras.callbacks.Callback):  # type: ignore[misc]  # not type-checked here
    """Backups of Keras' fit through two tiers.  backup_dir, save_freq ("epoch" or a number of
    batches): as in BackupAndRestore.

    fast: a folder on a local disk; None writes to backup_dir.  Other arguments are Checkpointer's.
    A backup holds the variables of model (including random seeds) and optimizer, and the next
    epoch, where fit() continues.  As with Keras' own, a backup within an epoch resumes at the begin
    of the epoch.  Backups stay after the training.
    """

    def __init__(
        self,
        backup_dir: AnyPath,
        save_freq: str | int = "epoch",
        *,
        fast: AnyPath | None = None,
        keep: Keep | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._every = save_freq if isinstance(save_freq, int) else None
        if save_freq != "epoch" and (self._every is None or self._every < 1):
            raise SaveError(f"save_freq is 'epoch' or a number of batches, not {save_freq!r}")
        self._places = (fast, backup_dir)
        self._keep, self._options = keep, options
        self._checkpointer: Checkpointer | None = None
        self._epoch = self._n_batches = 0

    def _state(self) -> dict[str, Any]:
        """By number: names of variables repeat.  Values leave their backend as NumPy's."""
        model = self.model
        return {
            "model": _values(model.variables),
            "optimizer": _values(model.optimizer.variables),
            "epoch": self._epoch,
            "batches": self._n_batches,
        }

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        if not model.built:
            raise SaveError("build the model before fit(), so that there is something to restore")
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        fast, slow = self._places
        # After an interrupted fit(), Keras does not call on_train_end.
        earlier = opened(slow if fast is None else fast)
        if earlier is not None and earlier in _ours:
            earlier.close()
        self._checkpointer = Checkpointer(fast, slow, keep=self._keep, **self._options)
        _ours.add(self._checkpointer)
        state = self._state()
        self._checkpointer.restore(state, default=0)
        if self._checkpointer.restored is None or self._checkpointer.restored.path is None:
            return
        for variables, values in (
            (model.variables, state["model"]),
            (model.optimizer.variables, state["optimizer"]),
        ):
            for number, variable in enumerate(variables):
                variable.assign(values[str(number)])
        self._epoch, self._n_batches = int(state["epoch"]), int(state["batches"])
        model._initial_epoch = self._epoch  # as Keras' own callback does

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1
        if self._every is None:
            self._save()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._n_batches += 1
        if self._checkpointer is not None:
            self._checkpointer.tick()
        if self._every is not None and self._n_batches % self._every == 0:
            self._save()

    def _save(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.save(self._n_batches, self._state())

    def on_train_end(self, logs: Any = None) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None


def _values(variables: Any) -> dict[str, Any]:
    return {
        str(number): keras.ops.convert_to_numpy(variable)
        for number, variable in enumerate(variables)
    }
