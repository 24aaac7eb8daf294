"""Record spans of a PyTorch training: waits for data, fetches in the workers, steps, checkpoints.

Wraps torch 2.1 and newer in place.  Imports nothing of torch, because the patches run during
torch's import.  A name missing in a version becomes a note. docs/FORMAT.md lists the names of spans
and the meanings of a and b; readers of the log know nothing else of this file.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.adapters import marks, processes, torch_compute
from penstock.adapters.lines import sampler
from penstock.adapters.marks import quietly, replace, thread, wrap, wrap_save
from penstock.recording import recorder

if TYPE_CHECKING:
    from penstock.adapters.torch_feed import FeedDataset, feed_stream, node_feed, shared_index

__all__ = ["PATCHES", "FeedDataset", "feed_stream", "node_feed", "shared_index"]

# environment variable: the knobs of `penstock run --tuned` and `penstock tune`, in JSON
TUNED = "PENSTOCK_TUNED"
# environment variable: the socket of the reader of `penstock run --ahead`
AHEAD = "PENSTOCK_AHEAD"
SEEDED = 0x80000000  # iterator ids made from a seed begin here; ids of marks.py are below


if not TYPE_CHECKING:  # a type checker that sees __getattr__ takes any name for one of this module

    def __getattr__(name: str) -> Any:
        """Import the reading classes at the first use.

        Numpy and the reader are loaded only for users of the reading classes.
        """
        if name in ("FeedDataset", "feed_stream", "node_feed", "shared_index"):
            from penstock.adapters import torch_feed

            return getattr(torch_feed, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Loaders


def _patch_dataloader(module: ModuleType) -> None:
    if TUNED in os.environ:
        from penstock.adapters.torch_tuned import wrap_options

        wrap("torch", module, "DataLoader.__init__", wrap_options(os.environ[TUNED]))
    if address := os.environ.get(AHEAD):
        from penstock.adapters.torch_ahead import wrap_next_index

        wrap("torch", module, "_BaseDataLoaderIter._next_index", wrap_next_index(address))
    for path, wrapper in (
        ("DataLoader.__iter__", _wrap_start),
        ("_BaseDataLoaderIter.__init__", _wrap_creation),
        ("_BaseDataLoaderIter._reset", _wrap_reset),
        ("_BaseDataLoaderIter.__next__", _wrap_next),
        ("_MultiProcessingDataLoaderIter._get_data", _wrap_get_data),
        ("_MultiProcessingDataLoaderIter._shutdown_workers", _wrap_shutdown),
        ("_utils.fetch._MapDatasetFetcher.fetch", _wrap_fetch),
        ("_utils.fetch._IterableDatasetFetcher.fetch", _wrap_fetch),
        ("_utils.worker._worker_loop", _wrap_worker_loop),
    ):
        wrap("torch", module, path, wrapper)


def _patch_worker(module: ModuleType) -> None:
    wrap("torch", module, "_worker_loop", _wrap_worker_loop)


def _patch_stateful(module: ModuleType) -> None:
    wrap("torch", module, "StatefulDataLoader.__iter__", _wrap_start)


def _wrap_start(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the making of an iterator, during which the step loop waits.

    Making an iterator starts the workers and pickles the data set for spawned workers.
    """

    @functools.wraps(original)
    def started(self: Any) -> Any:
        if thread.is_waiting or not recorder.is_recording():
            return original(self)
        span, iterator = _begin_start(), None
        try:
            iterator = original(self)
            return iterator
        finally:
            _end_start(span, iterator)

    return started


@quietly
def _begin_start() -> recorder.Span | None:
    return recorder.begin("loader start")


@quietly
def _end_start(span: recorder.Span | None, iterator: Any) -> None:
    begun = getattr(iterator, "_penstock", None)
    if span is not None:
        span.end(begun.id if begun is not None else 0)


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
        # A persistent iterator begins another pass: the new id reaches the workers in the message
        # that resumes the workers, sent after this call.
        begun = None if first_iter else _begin_pass(loader)
        original(self, loader, first_iter, *args, **kwargs)
        if begun is not None:
            _adopt(self, begun)

    return reset


@quietly
def _begin_pass(loader: Any) -> marks.Loader | None:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    n_workers = int(getattr(loader, "num_workers", 0) or 0)
    marks.name_loader("torch")
    return marks.begin_pass(n_workers, size if isinstance(size, int) else 0)


@quietly
def _adopt(iterator: Any, begun: marks.Loader) -> None:
    """Attach the pass to the iterator, and send the id of the pass to the workers.

    The id travels as the iterator's _shared_seed: an argument of the worker loop, and the content
    of the message that resumes persistent workers.  _shared_seed is pickled under every start
    method, and torch uses _shared_seed for IterDataPipes only.  With a datapipe the seed stays, and
    both sides derive the id from the seed.
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
    return SEEDED | (seed & (SEEDED - 1))


def _wrap_shutdown(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap the shutdown of workers, which waits until the workers have ended.

    Dropping an iterator outside the iterator's `next` (leaving a loop early, the next pass) calls
    the shutdown.
    """

    @functools.wraps(original)
    def shut(self: Any) -> None:
        is_told = (
            thread.is_waiting or not recorder.is_recording() or getattr(self, "_shutdown", True)
        )
        span = None if is_told else _begin_end()
        try:
            original(self)
        finally:
            _end_start(span, self)

    return shut


@quietly
def _begin_end() -> recorder.Span | None:
    return recorder.begin("loader end")


def _wrap_next(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def following(self: Any) -> Any:
        marks.attend(thread)
        if thread.is_waiting or not recorder.is_recording():
            return original(self)
        wait = None
        has_batch = False
        try:
            wait = _begin_wait(self)
            batch = original(self)
            has_batch = True
            return batch
        finally:
            _end_wait(wait, self, has_batch)

    return following


@quietly
def _begin_wait(iterator: Any) -> marks.Wait:
    thread.is_waiting = True
    # Without a pass, the iterator was made before the window began.
    loader = getattr(iterator, "_penstock", None) or _begin_pass_late(iterator)
    index = _due(iterator)
    if not iterator._num_workers:
        thread.task = (loader.id, index)
    if "jax" in sys.modules:  # JAX's updates are not observed
        marks.iterate(thread)
    return marks.begin_wait(loader, index)


def _begin_pass_late(iterator: Any) -> marks.Loader:
    iterator._penstock = loader = marks.Loader(int(iterator._num_workers))
    return loader


@quietly
def _end_wait(wait: marks.Wait | None, iterator: Any, has_batch: bool) -> None:
    thread.is_waiting = False
    thread.task = None
    if wait is None:
        return
    is_over = isinstance(sys.exc_info()[1], StopIteration)
    marks.end_wait(
        wait, _came(iterator) if has_batch else -1, is_failed=not has_batch and not is_over
    )
    if has_batch:
        return
    if not is_over:  # a worker may have been killed
        processes.look(getattr(iterator, "_workers", ()))
    if thread.is_iteration:
        marks.drop_step(thread)


def _due(iterator: Any) -> int:
    """Return the number of the next batch awaited by next(); -1 for none.

    Follows _MultiProcessingDataLoaderIter._next_data, which skips batches owed by workers with an
    exhausted IterableDataset.
    """
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
    """Return the number of the batch just returned by next()."""
    if not iterator._num_workers:
        return int(iterator._num_yielded) - 1
    if getattr(iterator, "_in_order", True):
        return int(iterator._rcvd_idx) - 1
    return int(getattr(iterator, "_penstock_latest", -1))


def _wrap_get_data(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def got(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = original(self, *args, **kwargs)
        if not getattr(self, "_in_order", True):  # out of order: the latest arrival is delivered
            self._penstock_latest = data[0] if isinstance(data[0], int) else -1
        return data

    return got


# Fetches


class _RunDelay:
    """The run-queue delay of a thread: ns ready to run without a CPU, as counted by the kernel.

    The count grows only with a context switch, and is read only after a switch: 7 us against 1 us.
    """

    def __init__(self) -> None:
        import resource

        self._usage = resource.getrusage
        self._who = resource.RUSAGE_THREAD
        self._switches = -1
        self._ns: int | None = None
        self.faults = 0  # major page faults of the thread, at the latest look
        self._read = recorder.run_delay_reader() or _read_schedstat

    def ns(self) -> int | None:
        """Return the delay of the calling thread, the owner of the object.

        None: the kernel does not count the delay.
        """
        usage = self._usage(self._who)
        self.faults = usage.ru_majflt
        switches = usage.ru_nvcsw + usage.ru_nivcsw
        if switches != self._switches:
            ns = self._read()
            self._switches, self._ns = switches, None if ns < 0 else ns
        return self._ns


def _read_schedstat() -> int:
    """Return the delay as the library's reader does; the recorder sees this function's calls."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return -1


@dataclass(slots=True)
class _Fetch:
    """A fetch of a batch, under way in the thread."""

    id: int
    index: int
    delay_ns: int | None
    faults: int
    cpu_ns: int
    span: recorder.Span | None


def _wrap_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fetched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.task is None:  # a loader inside a data set, or nothing is recorded
            return original(self, *args, **kwargs)
        fetch = _begin_fetch()
        if fetch is not None:
            sampler.begin(sys._getframe().f_code, fetch.cpu_ns)
        try:
            return original(self, *args, **kwargs)
        finally:
            sampler.end()
            _end_fetch(fetch)

    return fetched


@quietly
def _begin_fetch() -> _Fetch | None:
    task, thread.task = thread.task, None
    if task is None:
        return None
    if thread.delay is None:
        thread.delay = _RunDelay()
    delay_ns = thread.delay.ns()
    cpu_ns = time.thread_time_ns()
    thread.batch = task[1]
    return _Fetch(*task, delay_ns, thread.delay.faults, cpu_ns, recorder.begin("fetch", task[1]))


@quietly
def _end_fetch(fetch: _Fetch | None) -> None:
    thread.batch = -1
    if fetch is None or fetch.span is None:
        return
    cpu_ns = time.thread_time_ns() - fetch.cpu_ns
    fetch.span.end(fetch.id, cpu_ns)
    delay = thread.delay
    after_ns = delay.ns() if delay is not None else None
    if after_ns is not None and fetch.delay_ns is not None:
        span = recorder.begin("fetch delay", fetch.index)
        if span is not None:
            span.end(fetch.id, after_ns - fetch.delay_ns)
    if isinstance(sys.exc_info()[1], StopIteration):  # an IterableDataset is exhausted
        span = recorder.begin("fetch end", fetch.index)
        if span is not None:
            span.end(fetch.id)
    if delay is not None and delay.faults > fetch.faults:
        span = recorder.begin("fetch faults", fetch.index)
        if span is not None:
            span.end(fetch.id, delay.faults - fetch.faults)


def _wrap_worker_loop(original: Callable[..., None]) -> Callable[..., None]:
    # spawn and forkserver pickle the loop by name, and the wrapper keeps the original's name.  The
    # child looks the name up in the child's torch, patched by the child's recorder or not at all.
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
    """A loader's worker; each message holds the number of a batch, or the id of the next pass."""

    id: int  # of the iterator; 0: not known
    is_datapipe: bool
    get: Callable[..., Any]
    number: int
    span: recorder.Span | None
    setup: recorder.Span | None  # until the first request for work: worker_init_fn, the data set

    def next_task(self, *args: Any, **kwargs: Any) -> Any:
        if self.setup is not None:
            self.setup.end()
            self.setup = None
        message = self.get(*args, **kwargs)
        recorder.attend()
        if self.span is None:  # begun in a pause
            self.span = recorder.begin("worker", self.number)
        self._understand(message)
        return message

    def _understand(self, message: Any) -> None:
        try:
            if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], int):
                thread.task = (self.id, message[0]) if self.id else None
            else:
                thread.task = None
                self.hear(getattr(message, "seed", None))  # of _ResumeIteration
        except Exception:
            thread.task = None

    def hear(self, seed: Any) -> None:
        """Take the id that the main process sent as _shared_seed."""
        if isinstance(seed, int):
            self.id = _seeded(seed) if self.is_datapipe else seed


@quietly
def _begin_worker(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Worker | None:
    thread.forget()
    thread.is_waiting = True  # the training does not wait for loaders used by a data set
    if not recorder.is_attached():
        return None
    arguments = signature.bind(*args, **kwargs).arguments
    queue = arguments["index_queue"]
    is_datapipe = _is_datapipe(arguments["dataset"])
    number = arguments["worker_id"]
    span, setup = recorder.begin("worker", number), recorder.begin("worker setup", number)
    worker = _Worker(0, is_datapipe, queue.get, number, span, setup)
    worker.hear(arguments.get("shared_seed"))
    queue.get = worker.next_task
    return worker


@quietly
def _end_worker(worker: _Worker | None) -> None:
    sampler.write()
    if worker is not None and worker.span is not None:
        worker.span.end(worker.id, _main_pid())


def _main_pid() -> int:
    """Return the pid of the process that made the worker.

    Under forkserver the parent is another process.
    """
    processes = sys.modules.get("multiprocessing.process")
    parent = processes.parent_process() if processes is not None else None
    return int(parent.pid) if parent is not None and parent.pid else os.getppid()


# Steps


def _patch_optimizer(module: ModuleType) -> None:
    # Global hooks reach existing optimizers, and do not replace step().
    optimizers: Any = module
    optimizers.register_optimizer_step_pre_hook(_before_optimizer(optimizers.torch))
    optimizers.register_optimizer_step_post_hook(_after_optimizer(optimizers.torch))
    wrap("torch", module, "Optimizer.__init__", _wrap_optimizer)
    wrap("torch", module, "Optimizer.load_state_dict", wrap_save("load state"))


def _wrap_optimizer(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        torch_compute.first_step_may_begin()

    return made


# torch.compile traces hooks too.  torch.compile folds is_compiling() to True and so omits the hooks
# here; without the check a compiled step would break its graph here.


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
        if thread.optimizers:
            _end_optimizer(optimizer)

    return after


@quietly
def _begin_optimizer(optimizer: Any) -> None:
    stack = thread.optimizers
    _, unfinished = _pop(stack, optimizer)  # unfinished: the optimizer's last step raised
    if unfinished is not None:
        unfinished.end()
    if not stack:
        torch_compute.optimizer_begins()
    stack.append((optimizer, None if stack else recorder.begin("optimizer")))


def _pop(
    stack: list[tuple[Any, recorder.Span | None]], optimizer: Any
) -> tuple[bool, recorder.Span | None]:
    """Remove `optimizer`, and inner optimizers that never returned."""
    for depth, (other, span) in enumerate(stack):
        if other is optimizer:
            del stack[depth:]  # inner optimizers have no span
            return True, span
    return False, None


@quietly
def _end_optimizer(optimizer: Any) -> None:
    """End the step under way at the end of the outermost optimizer; begin the next step."""
    was_inside, span = _pop(thread.optimizers, optimizer)
    if span is not None:
        span.end()
    if not was_inside or thread.optimizers:
        return
    marks.end_optimizer(thread, optimizer)


# Checkpoints


def _patch_module(module: ModuleType) -> None:
    wrap("torch", module, "Module.load_state_dict", wrap_save("load state"))


def _patch_serialization(module: ModuleType) -> None:
    replace("torch", module, "save", wrap_save("checkpoint"), "torch")
    replace("torch", module, "load", wrap_save("restore"), "torch")


def _patch_checkpoint_save(module: ModuleType) -> None:
    replace("torch", module, "save", wrap_save("checkpoint"), "torch.distributed.checkpoint")
    # The blocking part of an asynchronous save.
    replace("torch", module, "async_save", wrap_save("checkpoint"), "torch.distributed.checkpoint")


def _patch_checkpoint_load(module: ModuleType) -> None:
    replace("torch", module, "load", wrap_save("restore"), "torch.distributed.checkpoint")


# Barriers: waits of a job's ranks for each other.


def _patch_distributed(module: ModuleType) -> None:
    for name in ("barrier", "monitored_barrier"):
        replace("torch", module, name, _wrap_barrier, "torch.distributed")


def _wrap_barrier(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def met(*args: Any, **kwargs: Any) -> Any:
        span = _begin_barrier() if recorder.is_recording() else None
        try:
            return original(*args, **kwargs)
        finally:
            if span is not None:
                span.end()

    return met


@quietly
def _begin_barrier() -> recorder.Span | None:
    return recorder.begin("barrier")


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.data.dataloader": _patch_dataloader,
    "torch.nn.modules.module": _patch_module,
    "torch.optim.optimizer": _patch_optimizer,
    "torch.serialization": _patch_serialization,
    "torch.distributed.distributed_c10d": _patch_distributed,
    "torch.distributed.checkpoint.state_dict_saver": _patch_checkpoint_save,
    "torch.distributed.checkpoint.state_dict_loader": _patch_checkpoint_load,
    "torchdata.stateful_dataloader.worker": _patch_worker,
    "torchdata.stateful_dataloader.stateful_dataloader": _patch_stateful,
}
