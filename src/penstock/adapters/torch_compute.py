"""Find the begin of a PyTorch computation: an input stretch ends, and the first step begins.

A stretch begins at the end of a step or a backward pass.  A stretch ends with the next forward call
of a module in the same thread, or with the next backward pass or optimizer step.  A global forward
pre-hook looks for the forward call, only while a stretch is open.  The hook removes itself before
the call goes on, so the modules inside run without a hook.  Clearing gradients inside a stretch is
recorded by name.  Imports nothing of torch.

The hook also sees forward calls of other threads.  A thread that calls a module with parameters
computes (a teacher, an actor, an evaluation) and is marked; a module without parameters may be a
transform of a data set.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters import marks
from penstock.adapters.marks import quietly, thread, wrap
from penstock.recording import recorder

__all__ = ["PATCHES", "first_step_may_begin", "optimizer_begins"]

# Calls in other threads while the hook is registered, a few microseconds each.  A thread with so
# many calls is the training thread, and the watched thread is not.
MOST_FOREIGN_CALLS = 10_000
# Calls of a thread whose module is searched for parameters, 10 us each.  A thread transforms data
# if the modules of the first calls all have no parameters.
MOST_SEARCHED_CALLS = 100


class _Watch:
    """The forward hook, and the threads whose next forward call is awaited."""

    def __init__(self) -> None:
        # None: hooks are not possible in this process
        self.register: Callable[..., Any] | None = None
        self.torch: Any = None
        self.threads: set[int] = set()
        self.handle: Any = None
        self.foreign_calls = 0

    def look(self, is_wanted: bool) -> None:
        """Begin or stop looking for the calling thread's next forward call."""
        if not is_wanted:
            self.threads.discard(get_ident())
            if not self.threads:
                self.take_out()
        elif self.register is not None:
            self.threads.add(get_ident())
            if self.handle is None:
                self.foreign_calls = 0
                self.handle = self.register(self.hook)

    def take_out(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.remove()

    def forget(self) -> None:
        """Remove the hook in a forked child: the child has a copy of the hook and no stretch."""
        self.threads.clear()
        self.take_out()

    def close(self) -> None:
        """Remove the hook for good."""
        self.register = None
        self.forget()

    def hook(self, module: Any, inputs: Any) -> None:
        if self.torch.compiler.is_compiling():  # folded to True when torch.compile traces the hook
            return
        if get_ident() not in self.threads:
            if not thread.is_trainer and thread.searched_calls < MOST_SEARCHED_CALLS:
                _search(module)
            self.foreign_calls += 1
            if self.foreign_calls > MOST_FOREIGN_CALLS:
                self.forget()
        elif not thread.is_waiting:
            _forward_begins()


_watch = _Watch()


@quietly
def _search(module: Any) -> None:
    """Mark the calling thread, without steps of its own, if the module has parameters."""
    thread.searched_calls += 1
    if next(iter(module.parameters()), None) is not None:
        marks.trains(thread)


@quietly
def _forward_begins() -> None:
    """Handle a forward call of the outermost module.

    The hook is removed before inner modules are called.
    """
    has_gradients = _watch.torch.is_grad_enabled()
    _watch.look(False)
    recorder.end_stretch(recorder.FORWARD if has_gradients else recorder.EVALUATION)
    if has_gradients and not recorder.is_stepping():
        marks.begin_first_step(thread)


@quietly
def first_step_may_begin() -> None:
    """Watch for the first step after an optimizer is made.

    The step begins with the next forward call, unless a loader's `next` begins the step before.
    """
    if recorder.is_recording() and not recorder.is_stepping() and not thread.is_waiting:
        _watch.look(True)


def optimizer_begins() -> None:
    """Record the begin of the outermost optimizer's step in the calling thread."""
    if not recorder.is_stepping():
        marks.begin_first_step(thread)
    recorder.end_stretch(recorder.OPTIMIZER)


# Modules


def _patch_module(module: ModuleType) -> None:
    is_gil_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if not is_gil_enabled():
        # Another thread may be iterating over the hooks while the hooks change.
        recorder.note("adapter torch", "input stretches end with the backward pass: no GIL")
        return
    modules: Any = module
    _watch.torch, _watch.register = modules.torch, modules.register_module_forward_pre_hook
    os.register_at_fork(after_in_child=_watch.forget)
    recorder.on_stretch(_watch.look)
    wrap("torch", module, "Module.zero_grad", _wrap_clear)


# torch.compile traces code with the current hooks, and again after a change of the hooks.
# Therefore the hook is removed before a call of a compiled module, and is never used with compiled
# functions, whose calls cannot be seen.


def _patch_dynamo(module: ModuleType) -> None:
    wrap("torch", module, "OptimizedModule.__call__", _wrap_compiled_call)
    wrap("torch", module, "_TorchDynamoContext.__call__", _wrap_compile)


def _wrap_compiled_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _watch.handle is not None and get_ident() in _watch.threads and not thread.is_waiting:
            _forward_begins()
        return original(self, *args, **kwargs)

    return called


def _wrap_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    depth = 0  # a module's own call is compiled inside the compilation of the module

    @functools.wraps(original)
    def compiled(self: Any, function: Any) -> Any:
        nonlocal depth
        if not depth and not hasattr(function, "named_parameters"):  # a function, not a module
            _watch.close()
        depth += 1
        try:
            return original(self, function)
        finally:
            depth -= 1

    return compiled


# Gradients are cleared


def _patch_optimizer(module: ModuleType) -> None:
    wrap("torch", module, "Optimizer.zero_grad", _wrap_clear)


def _wrap_clear(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        torch = _watch.torch
        if torch is None or torch.compiler.is_compiling() or not recorder.in_stretch():
            return original(self, *args, **kwargs)
        span, cpu_ns = recorder.begin("clear gradients", 0), time.thread_time_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            if span is not None:
                span.end(0, time.thread_time_ns() - cpu_ns)

    return zero_grad


# Backward passes


def _patch_autograd(module: ModuleType) -> None:
    wrap("torch", module, "backward", _wrap_backward)


def _wrap_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        own = thread
        if own.is_backward or own.is_waiting or not recorder.is_recording():
            return original(*args, **kwargs)
        own.is_backward = True
        try:
            _backward_begins()
            return original(*args, **kwargs)
        finally:
            own.is_backward = False
            recorder.begin_stretch(recorder.AFTER_BACKWARD)

    return backward


@quietly
def _backward_begins() -> None:
    marks.trains(thread)
    if not recorder.is_stepping():
        marks.begin_first_step(thread)
    recorder.end_stretch(recorder.BACKWARD)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.nn.modules.module": _patch_module,
    "torch.optim.optimizer": _patch_optimizer,
    "torch.autograd": _patch_autograd,
    "torch._dynamo.eval_frame": _patch_dynamo,
}
