"""Spans of a PyTorch training: waits for data, fetches in the workers, steps, checkpoints.

Wraps torch 2.1 and newer in place; imports nothing of it, since it is called while torch is being
imported.  A name that a version lacks becomes a note.  The names of spans and what their a and b
mean are listed in docs/FORMAT.md; the readers know nothing else of this file.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from penstock import recorder

__all__ = ["PATCHES"]

ID_MASK = 0x7FFFFFFF  # iterator ids are 32 bits; the upper half is for those made from a seed
SEEDED = 0x80000000


class _Thread(threading.local):
    """What the adapter knows of one thread."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As a new thread, or a forked child whose open spans are its parent's."""
        self.is_waiting = False  # inside the outermost next(), or in a loader's worker
        self.task: tuple[int, int] | None = None  # (iterator id, batch index) to be fetched next
        self.saves = 0  # depth: a checkpoint is written by one outermost call
        self.optimizers: list[tuple[Any, recorder.Span | None]] = []
        self.step: recorder.Span | None = None  # the automatic step under way
        self.delay: _RunDelay | None = None
        self.leftovers: list[_Loader] = []  # passes begun here that died in another thread


_thread = _Thread()
_ids = itertools.count(1)
_serials = itertools.count()
_n_steps = 0  # automatic steps that have ended in this process


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Our own trouble must not become the training's."""

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception:
            return None

    return guarded


def _wrap(owner: Any, path: str, wrap: Callable[[Any], Any]) -> None:
    """Replaces owner.path by wrap() of it; a note where this version has no such name."""
    *steps, name = path.split(".")
    try:
        for step in steps:
            owner = getattr(owner, step)
        setattr(owner, name, wrap(getattr(owner, name)))
    except AttributeError as error:
        recorder.note("adapter torch", f"{path} not patched: {error}")


# Loaders


class _Loader:
    """One pass of a loader's iterator; its span ends with the pass, or when the iterator dies."""

    __slots__ = ("batch_items", "id", "leftovers", "n_workers", "span")

    def __init__(self, iterator_id: int, loader: Any) -> None:
        self.id = iterator_id
        self.leftovers = _thread.leftovers
        self.span = recorder.begin("loader", iterator_id)
        self.n_workers = int(getattr(loader, "num_workers", 0) or 0)
        size = getattr(loader, "batch_size", None)
        if size is None:
            size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        self.batch_items = size if isinstance(size, int) else 0

    def end(self) -> None:
        span, self.span = self.span, None
        if span is None:
            return
        if span.is_ours():
            span.end(self.n_workers, self.batch_items)
        elif self.leftovers is not _thread.leftovers:
            self.span = span  # only the thread that began a span can end it
            self.leftovers.append(self)

    def __del__(self) -> None:
        try:  # noqa: SIM105 - at the interpreter's end contextlib may be gone
            self.end()
        except Exception:
            pass


def _patch_dataloader(module: ModuleType) -> None:
    os.register_at_fork(after_in_child=_thread.forget)
    for path, wrap in (
        ("_BaseDataLoaderIter.__init__", _wrap_creation),
        ("_BaseDataLoaderIter._reset", _wrap_reset),
        ("_BaseDataLoaderIter.__next__", _wrap_next),
        ("_MultiProcessingDataLoaderIter._get_data", _wrap_get_data),
        ("_utils.fetch._MapDatasetFetcher.fetch", _wrap_fetch),
        ("_utils.fetch._IterableDatasetFetcher.fetch", _wrap_fetch),
        ("_utils.worker._worker_loop", _wrap_worker_loop),
    ):
        _wrap(module, path, wrap)


def _patch_worker(module: ModuleType) -> None:
    _wrap(module, "_worker_loop", _wrap_worker_loop)


def _wrap_creation(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def created(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begun = _begin_pass(loader)
        original(self, loader, *args, **kwargs)
        if begun is not None:
            _adopt(self, begun)

    return created


def _wrap_reset(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **kwargs: Any) -> None:
        # A persistent iterator begins another pass: the workers hear of its id with the message
        # that resumes them, which is sent after this returns.
        begun = None if first_iter else _begin_pass(loader)
        original(self, loader, first_iter, *args, **kwargs)
        if begun is not None:
            _adopt(self, begun)

    return reset


@_quietly
def _begin_pass(loader: Any) -> _Loader | None:
    if _thread.is_waiting or not recorder.is_recording():
        return None
    while _thread.leftovers:
        _thread.leftovers.pop().end()
    return _Loader(next(_ids) & ID_MASK, loader)


@_quietly
def _adopt(iterator: Any, begun: _Loader) -> None:
    """Gives the pass to its iterator, and its id to the workers.

    The id travels as the iterator's _shared_seed: an argument of the worker loop and the content of
    the message that resumes persistent workers, pickled under every start method, and used by torch
    for IterDataPipes only.  Those keep their seed, and both sides make the id from it.
    """
    before = getattr(iterator, "_penstock", None)
    if before is not None:
        before.end()
    if _is_datapipe(iterator._dataset):
        begun.id = _seeded(iterator._shared_seed)
    else:
        iterator._shared_seed = begun.id
    iterator._penstock = begun


def _is_datapipe(dataset: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return isinstance(dataset, getattr(data, "IterDataPipe", ()))


def _seeded(seed: int) -> int:
    return SEEDED | (seed & ID_MASK)


@dataclass(slots=True)
class _Wait:
    """The outermost next() of a loader in one thread."""

    iterator: Any
    loader: _Loader
    announced: int
    cpu_ns: int
    span: recorder.Span | None


def _wrap_next(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def following(self: Any) -> Any:
        if _thread.is_waiting or not recorder.is_recording():
            return original(self)
        wait = None
        has_batch = False
        try:
            wait = _begin_wait(self)
            batch = original(self)
            has_batch = True
            return batch
        finally:
            _end_wait(wait, has_batch)

    return following


@_quietly
def _begin_wait(iterator: Any) -> _Wait:
    thread = _thread
    thread.is_waiting = True
    # No pass: the iterator was made before the window began.
    loader = getattr(iterator, "_penstock", None) or _begin_pass_late(iterator)
    index = _due(iterator)
    if not iterator._num_workers:
        thread.task = (loader.id, index)
    if thread.step is None or not thread.step.is_ours():
        _begin_step(thread)
    cpu_ns = time.thread_time_ns()
    return _Wait(iterator, loader, index, cpu_ns, recorder.begin("data wait", index))


def _begin_pass_late(iterator: Any) -> _Loader:
    iterator._penstock = loader = _Loader(next(_ids) & ID_MASK, iterator)
    loader.n_workers = int(iterator._num_workers)
    return loader


@_quietly
def _end_wait(wait: _Wait | None, has_batch: bool) -> None:
    thread = _thread
    thread.is_waiting = False
    thread.task = None
    if wait is None or wait.span is None:
        return
    cpu_ns = time.thread_time_ns() - wait.cpu_ns
    wait.span.end(wait.loader.id, cpu_ns)
    came = _came(wait.iterator) if has_batch else -1
    if came != wait.announced:
        other = recorder.begin("delivered", came)
        if other is not None:
            other.end(wait.loader.id, wait.announced + 1)
    if not has_batch and isinstance(sys.exc_info()[1], StopIteration):
        wait.loader.end()


def _due(iterator: Any) -> int:
    """The number of the batch that next() will wait for; -1 when there is none.

    Follows _MultiProcessingDataLoaderIter._next_data, which passes over the batches that workers
    with an exhausted IterableDataset still owe."""
    if not iterator._num_workers:
        return int(iterator._num_yielded)
    number, tasks = int(iterator._rcvd_idx), iterator._task_info
    while number < iterator._send_idx:
        task = tasks.get(number)
        if task and (len(task) == 2 or iterator._workers_status[task[0]]):
            return number
        number += 1
    return -1


def _came(iterator: Any) -> int:
    """The number of the batch that next() has just given."""
    if not iterator._num_workers:
        return int(iterator._num_yielded) - 1
    if getattr(iterator, "_in_order", True):
        return int(iterator._rcvd_idx) - 1
    return int(getattr(iterator, "_penstock_latest", -1))


def _wrap_get_data(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def got(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = original(self, *args, **kwargs)
        if not getattr(self, "_in_order", True):  # the latest to arrive is the one delivered
            self._penstock_latest = data[0] if isinstance(data[0], int) else -1
        return data

    return got


# Fetches


class _RunDelay:
    """Nanoseconds that one thread was ready to run and did not, as the kernel counts them.

    They grow only with a context switch, and are read when there was one: 7 us against 1 us.
    """

    def __init__(self) -> None:
        import resource

        self._usage = resource.getrusage
        self._who = resource.RUSAGE_THREAD
        self._switches = -1
        self._ns: int | None = None
        self._read = recorder.run_delay_reader() or _read_schedstat

    def ns(self) -> int | None:
        """Of the calling thread, whose object this is; None where the kernel does not tell."""
        usage = self._usage(self._who)
        switches = usage.ru_nvcsw + usage.ru_nivcsw
        if switches != self._switches:
            ns = self._read()
            self._switches, self._ns = switches, None if ns < 0 else ns
        return self._ns


def _read_schedstat() -> int:
    """As the library's reader; but the recorder sees this one's calls."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return -1


@dataclass(slots=True)
class _Fetch:
    """One batch being fetched in this thread."""

    id: int
    index: int
    delay_ns: int | None
    cpu_ns: int
    span: recorder.Span | None


def _wrap_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _thread.task is None:  # a loader inside a data set, or nothing is recorded
            return original(self, *args, **kwargs)
        fetch = _begin_fetch()
        try:
            return original(self, *args, **kwargs)
        finally:
            _end_fetch(fetch)

    return fetched


@_quietly
def _begin_fetch() -> _Fetch | None:
    thread = _thread
    task, thread.task = thread.task, None
    if task is None:
        return None
    if thread.delay is None:
        thread.delay = _RunDelay()
    delay_ns = thread.delay.ns()
    cpu_ns = time.thread_time_ns()
    return _Fetch(*task, delay_ns, cpu_ns, recorder.begin("fetch", task[1]))


@_quietly
def _end_fetch(fetch: _Fetch | None) -> None:
    if fetch is None or fetch.span is None:
        return
    cpu_ns = time.thread_time_ns() - fetch.cpu_ns
    fetch.span.end(fetch.id, cpu_ns)
    delay = _thread.delay
    after_ns = delay.ns() if delay is not None else None
    if after_ns is not None and fetch.delay_ns is not None:
        told = recorder.begin("fetch delay", fetch.index)
        if told is not None:
            told.end(fetch.id, after_ns - fetch.delay_ns)


def _wrap_worker_loop(original: Callable[..., None]) -> Callable[..., None]:
    # spawn and forkserver pickle the loop by its name, which stays that of the original; the child
    # looks it up in its own torch, patched there by its own recorder, or not patched at all.
    signature = inspect.signature(original)

    @functools.wraps(original)
    def loop(*args: Any, **kwargs: Any) -> None:
        worker = _begin_worker(signature, args, kwargs)
        try:
            original(*args, **kwargs)
        finally:
            _end_worker(worker)

    return loop


@dataclass(slots=True)
class _Worker:
    """A loader's worker: which batch of which iterator it is asked for comes with each message."""

    id: int  # of the iterator, 0: not known
    is_datapipe: bool
    get: Callable[..., Any]
    span: recorder.Span | None

    def next_task(self, *args: Any, **kwargs: Any) -> Any:
        message = self.get(*args, **kwargs)
        self._understand(message)
        return message

    def _understand(self, message: Any) -> None:
        try:
            if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], int):
                _thread.task = (self.id, message[0]) if self.id else None
            else:
                _thread.task = None
                self.hear(getattr(message, "seed", None))  # of _ResumeIteration
        except Exception:
            _thread.task = None

    def hear(self, seed: Any) -> None:
        """What the main process sent as _shared_seed."""
        if isinstance(seed, int):
            self.id = _seeded(seed) if self.is_datapipe else seed


@_quietly
def _begin_worker(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Worker | None:
    _thread.forget()
    _thread.is_waiting = True  # loaders used by a data set are not what the training waits for
    if not recorder.is_recording():
        return None
    arguments = signature.bind(*args, **kwargs).arguments
    queue = arguments["index_queue"]
    is_datapipe = _is_datapipe(arguments["dataset"])
    worker = _Worker(0, is_datapipe, queue.get, recorder.begin("worker", arguments["worker_id"]))
    worker.hear(arguments.get("shared_seed"))
    queue.get = worker.next_task
    return worker


@_quietly
def _end_worker(worker: _Worker | None) -> None:
    if worker is not None and worker.span is not None:
        worker.span.end(worker.id, _main_pid())


def _main_pid() -> int:
    """Of the process that made this worker; under forkserver that is not the parent."""
    processes = sys.modules.get("multiprocessing.process")
    parent = processes.parent_process() if processes is not None else None
    return int(parent.pid) if parent is not None and parent.pid else os.getppid()


# Steps


def _patch_optimizer(module: ModuleType) -> None:
    # The global hooks reach optimizers that exist already, and leave step() itself alone.
    optimizers: Any = module
    optimizers.register_optimizer_step_pre_hook(_before_optimizer(optimizers.torch))
    optimizers.register_optimizer_step_post_hook(_after_optimizer(optimizers.torch))


# torch.compile traces hooks as well.  It folds is_compiling() to True and so leaves ours out;
# without that a compiled step would break its graph here.


def _before_optimizer(torch: Any) -> Callable[[Any, Any, Any], None]:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if recorder.is_recording():
            _begin_optimizer(optimizer)

    return before


def _after_optimizer(torch: Any) -> Callable[[Any, Any, Any], None]:
    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if _thread.optimizers:
            _end_optimizer(optimizer)

    return after


@_quietly
def _begin_optimizer(optimizer: Any) -> None:
    stack = _thread.optimizers
    _, unfinished = _pop(stack, optimizer)  # it raised the last time
    if unfinished is not None:
        unfinished.end()
    stack.append((optimizer, None if stack else recorder.begin("optimizer")))


def _pop(
    stack: list[tuple[Any, recorder.Span | None]], optimizer: Any
) -> tuple[bool, recorder.Span | None]:
    """Takes `optimizer` off, and those that it called and that never came back."""
    for depth, (other, span) in enumerate(stack):
        if other is optimizer:
            del stack[depth:]  # the inner ones have no span
            return True, span
    return False, None


@_quietly
def _end_optimizer(optimizer: Any) -> None:
    """The outermost optimizer's end is a step's end, and the next one's beginning."""
    global _n_steps
    thread = _thread
    was_inside, span = _pop(thread.optimizers, optimizer)
    if span is not None:
        span.end()
    if not was_inside or thread.optimizers:
        return
    step, thread.step = thread.step, None
    if recorder.has_explicit_steps():
        return
    if step is not None and step.is_ours():
        step.end(0, 0)
        _n_steps += 1
    _begin_step(thread)


def _begin_step(thread: _Thread) -> None:
    if not recorder.has_explicit_steps():
        thread.step = recorder.begin("step", _n_steps, recorder.OP_STEP)


# Checkpoints


def _wrap_save(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """One span per outermost call in a thread; the events inside name the files."""

    @functools.wraps(original)
    def saved(*args: Any, **kwargs: Any) -> Any:
        thread = _thread
        if thread.saves or not recorder.is_recording():
            return original(*args, **kwargs)
        thread.saves = 1
        span = None
        try:
            span = _begin_save(name)
            return original(*args, **kwargs)
        finally:
            thread.saves = 0
            if span is not None:
                span.end()

    return saved


@_quietly
def _begin_save(name: str) -> recorder.Span | None:
    return recorder.begin(name, next(_serials))


def _replace(module: ModuleType, function: str, span: str, place: str) -> None:
    """Wraps a function of `module`, and the same function where `place` shows it again."""
    original = getattr(module, function, None)
    _wrap(module, function, functools.partial(_wrap_save, span))
    shown = sys.modules.get(place)
    if original is not None and getattr(shown, function, None) is original:
        setattr(shown, function, getattr(module, function))


def _patch_serialization(module: ModuleType) -> None:
    _replace(module, "save", "checkpoint", "torch")
    _replace(module, "load", "restore", "torch")


def _patch_checkpoint_save(module: ModuleType) -> None:
    _replace(module, "save", "checkpoint", "torch.distributed.checkpoint")
    # Of an asynchronous save this is the part that blocks the caller.
    _replace(module, "async_save", "checkpoint", "torch.distributed.checkpoint")


def _patch_checkpoint_load(module: ModuleType) -> None:
    _replace(module, "load", "restore", "torch.distributed.checkpoint")


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.data.dataloader": _patch_dataloader,
    "torch.optim.optimizer": _patch_optimizer,
    "torch.serialization": _patch_serialization,
    "torch.distributed.checkpoint.state_dict_saver": _patch_checkpoint_save,
    "torch.distributed.checkpoint.state_dict_loader": _patch_checkpoint_load,
    "torchdata.stateful_dataloader.worker": _patch_worker,
}
