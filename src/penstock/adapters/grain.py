"""Mark waits at Grain's outermost iterators, and Grain's worker processes.

Imports nothing of Grain.  Grain reads in threads of the training process or of the workers, and
does not report which thread made a batch.  Therefore a wait records the CPU time of the process,
and the reader of the log looks at the file calls of all reading threads.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly, thread, wrap, wrap_next
from penstock.recording import recorder

__all__ = ["PATCHES"]


def _patch_dataset(module: ModuleType) -> None:
    """Wrap every stage of a pipeline.

    Each stage is an iterator with a class of its own, made in many modules.
    """
    base: Any = module.DatasetIterator

    def made(cls: Any, /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        _wrap_class(cls)

    base.__init_subclass__ = classmethod(made)
    waiting = list(base.__subclasses__())
    while waiting:
        kind = waiting.pop()
        _wrap_class(kind)
        waiting += kind.__subclasses__()


@quietly
def _wrap_class(iterator: Any) -> None:
    """Wrap Grain's own classes only.

    A class of the program may be pickled whole for a worker, and a wrapper cannot be pickled.
    """
    if not iterator.__module__.startswith("grain."):
        return
    following = vars(iterator).get("__next__")
    if following is not None and not getattr(following, "__isabstractmethod__", False):
        iterator.__next__ = wrap_next(following)


def _patch_loader(module: ModuleType) -> None:
    wrap("grain", module, "DataLoaderIterator.__next__", wrap_next)


def _patch_processes(module: ModuleType) -> None:
    wrap("grain", module, "_put_dataset_elements_in_buffer", _wrap_worker)


def _wrap_worker(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def loop(*args: Any, **kwargs: Any) -> None:
        worker = _begin_worker()
        try:
            original(*args, **kwargs)
        finally:
            if worker is not None:
                worker.end(0, _main_pid())

    return loop


@quietly
def _begin_worker() -> recorder.Span | None:
    thread.forget()
    thread.is_waiting = True  # the training does not wait for each iterator of a worker
    return recorder.begin("worker")


def _main_pid() -> int:
    """Return the pid of the process that made the worker.

    Under forkserver the parent is another process.
    """
    processes = sys.modules.get("multiprocessing.process")
    parent = processes.parent_process() if processes is not None else None
    return int(parent.pid) if parent is not None and parent.pid else os.getppid()


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "grain._src.python.dataset.dataset": _patch_dataset,
    "grain._src.python.data_loader": _patch_loader,
    "grain._src.python.dataset.transformations.process_prefetch": _patch_processes,
}
