"""Mark waits at tf.data's iterators, calls of graphs with an iterator argument, and checkpoints.

Iterators asked by Python are marked here.  Iterators asked by a graph (Keras' fit, a tf.function
with an iterator among the arguments) are asked in C++, where the native recorder measures the time;
here the call of such a graph is an iteration, and gets a clock.  C++ threads read without a link to
a batch: see queries/pool_calls.sql.  Imports nothing of TensorFlow.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters import marks
from penstock.adapters.marks import quietly, replace, thread, wrap, wrap_next, wrap_save
from penstock.recording import recorder

__all__ = ["PATCHES"]

_iterators: tuple[type, ...] = ()  # classes of iterators for the arguments of graphs


def _patch_iterators(module: ModuleType) -> None:
    global _iterators
    iterators: Any = module

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        waited = wrap_next(original, is_end=_is_end)

        @functools.wraps(original)
        def following(self: Any, *args: Any, **kwargs: Any) -> Any:
            if iterators.context.executing_eagerly():
                return waited(self, *args, **kwargs)
            return original(self, *args, **kwargs)  # a graph is being traced: nobody waits

        return following

    for path in ("OwnedIterator._next_internal", "OwnedIterator.get_next_as_optional"):
        wrap("tensorflow", module, path, wrapper)
    _iterators = (iterators.OwnedIterator,)


def _is_end(error: BaseException) -> bool:
    return isinstance(error, StopIteration) or type(error).__name__ == "OutOfRangeError"


def _patch_functions(module: ModuleType) -> None:
    wrap("tensorflow", module, "Function.__call__", _wrap_call)


def _wrap_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.is_waiting or not recorder.is_recording() or not _has_iterator(args):
            return original(self, *args, **kwargs)
        _begin_call()
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            if _is_end(error):
                _end_calls()
            raise

    return called


def _has_iterator(args: tuple[Any, ...]) -> bool:
    return any(isinstance(argument, _iterators) for argument in args)


@quietly
def _begin_call() -> None:
    marks.iterate(thread)
    span = recorder.begin("graph")
    if span is not None:
        span.end(time.process_time_ns(), recorder.run_delays(recorder.BEFORE_GRAPH) + 1)


@quietly
def _end_calls() -> None:
    """Record a graph's request for a batch after the last batch."""
    if thread.is_iteration:
        marks.drop_step(thread)
    span = recorder.begin("delivered", -1)
    if span is not None:
        span.end()


# Checkpoints


def _patch_checkpoint(module: ModuleType) -> None:
    for owner in ("Checkpoint", "CheckpointV1", "TrackableSaver"):
        wrap("tensorflow", module, f"{owner}.save", wrap_save("checkpoint"))
        wrap("tensorflow", module, f"{owner}.restore", wrap_save("restore"))
    for owner in ("Checkpoint", "CheckpointV1"):
        wrap("tensorflow", module, f"{owner}.write", wrap_save("checkpoint"))
    wrap("tensorflow", module, "Checkpoint.read", wrap_save("restore"))


def _patch_saved_model(module: ModuleType) -> None:
    for function in ("save", "save_and_return_nodes"):
        wrap("tensorflow", module, function, wrap_save("checkpoint"))


def _patch_loaded_model(module: ModuleType) -> None:
    for function in ("load", "load_partial"):
        wrap("tensorflow", module, function, wrap_save("restore"))


# Profiles


def _patch_profiler(module: ModuleType) -> None:
    replace("tensorflow", module, "start", _wrap_profile_start, *_SHOWN)
    replace("tensorflow", module, "stop", _wrap_profile_stop, *_SHOWN)


_SHOWN = ("tensorflow._api.v2.profiler.experimental", "tensorflow.profiler.experimental")
_profile_folder: str | None = None  # the paused run, resumed for the current profile


def _wrap_profile_start(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _profile_begins()
        return result

    return start


def _wrap_profile_stop(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stop(*args: Any, **kwargs: Any) -> Any:
        _profile_ends()
        return original(*args, **kwargs)

    return stop


@quietly
def _profile_begins() -> None:
    """Resume a paused run for a profile: all processes of the run record until the profile ends.

    A run that records already continues.
    """
    from penstock.recording import (
        control,  # imported here: profiles are rare, and the start of a program must not be slowed
    )

    global _profile_folder
    marks.attend(thread)
    folder = recorder.folder()
    if folder is not None and not recorder.is_recording():
        control.ask(folder, control.RECORD)
        _profile_folder = folder
        marks.attend(thread)


@quietly
def _profile_ends() -> None:
    global _profile_folder
    folder, _profile_folder = _profile_folder, None
    if folder is not None:
        from penstock.recording import control

        control.ask(folder, control.PAUSE)
        marks.attend(thread)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "tensorflow.python.data.ops.iterator_ops": _patch_iterators,
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": _patch_functions,
    "tensorflow.python.checkpoint.checkpoint": _patch_checkpoint,
    "tensorflow.python.saved_model.save": _patch_saved_model,
    "tensorflow.python.saved_model.load": _patch_loaded_model,
    "tensorflow.python.profiler.profiler_v2": _patch_profiler,
}
