"""The common part of all adapters: waits at the outermost iterator, steps, checkpoints.

A training may use several frameworks at once (JAX fed by torch's loader, Keras on tf.data): the
outermost call and the step under way are known here, for each thread.  Imports no framework.
docs/FORMAT.md lists the names of spans and the meanings of a and b.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.recording import recorder

__all__ = [
    "BY_ADAPTER",
    "BY_CONTINUATION",
    "BY_ITERATION",
    "Loader",
    "MarkedThread",
    "Wait",
    "attend",
    "begin_first_step",
    "begin_pass",
    "begin_step",
    "begin_wait",
    "drop_step",
    "end_optimizer",
    "end_step",
    "end_wait",
    "failed_later",
    "iterate",
    "name_loader",
    "quietly",
    "replace",
    "thread",
    "trains",
    "wrap",
    "wrap_next",
    "wrap_save",
    "wrap_wait_for_save",
]

ID_MASK = 0x7FFFFFFF  # iterator ids have 32 bits; ids from a seed use the upper half

# Origins of a step span, in b; 1 is a step marked by the program.
BY_ADAPTER = 0
NONE_CAME = -2  # index of a `delivered`: next() raised before the end of the pass
FAILED = 1  # b of a checkpoint or a restore: an exception ended the call
BY_ITERATION = 2  # ended by a loader's iteration: counts only in a process without other steps
BY_CONTINUATION = 3  # ended by an adapter as part of the step before, which becomes longer


class MarkedThread(threading.local):
    """The adapters' state of a thread."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the state for a new thread, or for a forked child.

        The open spans of a forked child belong to the parent.
        """
        self.is_waiting = False  # inside the outermost next(), or in a loader's worker
        self.task: tuple[int, int] | None = None  # (iterator id, batch index) to be fetched next
        self.batch = -1  # index of the batch under way in the thread
        self.saves = 0  # depth: only the outermost call writes a checkpoint
        self.optimizers: list[tuple[Any, recorder.Span | None]] = []
        self.stepped: set[int] = set()  # ids of the iteration's optimizers: see end_optimizer
        self.is_backward = False
        self.is_trainer = False  # see trains
        self.searched_calls = 0  # forward calls beside the training, see torch_compute
        self.step: recorder.Span | None = None  # the automatic step under way
        # the next wait ends the step under way, unless something else has
        self.is_iteration = False
        self.epoch: Loader | None = None  # a pass marked by the trainer only
        self.delay: Any = None
        self.leftovers: list[Loader] = []  # passes begun here and dropped in another thread


thread = MarkedThread()
_ids = itertools.count(1)
_serials = itertools.count()
_loaders: set[str] = set()  # package names of loaders, noted in this process
_n_steps = [0, 0, 0]  # ended automatic steps of the process, by origin


def quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that our own errors never reach the training."""

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception:
            return None

    return guarded


def wrap(adapter: str, owner: Any, path: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace owner.path by a wrapper; write a note if the owner has no such name."""
    *steps, name = path.split(".")
    try:
        for step in steps:
            owner = getattr(owner, step)
        setattr(owner, name, wrapper(getattr(owner, name)))
    except AttributeError as error:
        recorder.note(f"adapter {adapter}", f"{path} not patched: {error}")


def replace(
    adapter: str, module: ModuleType, function: str, wrapper: Callable[[Any], Any], *places: str
) -> None:
    """Wrap a function of `module`, and the same function where modules `places` re-export it."""
    original = getattr(module, function, None)
    wrap(adapter, module, function, wrapper)
    for place in places:
        shown = sys.modules.get(place)
        if original is not None and getattr(shown, function, None) is original:
            setattr(shown, function, getattr(module, function))


# Loaders and waits


class Loader:
    """A pass of a loader's iterator; the span ends with the pass, or when the iterator dies."""

    __slots__ = ("batch_items", "id", "is_begun", "leftovers", "n_workers", "next_index", "span")

    def __init__(self, n_workers: int = 0, batch_items: int = 0) -> None:
        self.id = next(_ids) & ID_MASK
        self.leftovers = thread.leftovers
        self.span = recorder.begin("loader", self.id)
        self.is_begun = self.span is not None  # False: made in a pause
        self.n_workers = n_workers
        self.batch_items = batch_items
        self.next_index = 0  # of the next batch, if nobody else counts

    def end(self) -> None:
        """End the span, once; in another thread, leave the span to the thread of its begin."""
        span, self.span = self.span, None
        if span is None:
            return
        if span.is_ours():
            span.end(self.n_workers, self.batch_items)
        elif self.leftovers is not thread.leftovers:
            self.span = span  # only the thread that began the span can end the span
            self.leftovers.append(self)

    def __del__(self) -> None:
        try:  # noqa: SIM105 - at the interpreter's end contextlib may be gone
            self.end()
        except Exception:
            pass


def name_loader(name: str) -> None:
    """Note the package of a loader, once per process, so that remedies use the package's words."""
    if name not in _loaders and recorder.is_recording():
        _loaders.add(name)
        recorder.note("loader", name)


def begin_pass(n_workers: int = 0, batch_items: int = 0) -> Loader | None:
    """Begin a pass of an outermost loader.

    None: the loader serves another loader, or the process is not recorded.
    """
    if thread.is_waiting or not recorder.is_attached():
        return None
    while thread.leftovers:
        thread.leftovers.pop().end()
    return Loader(n_workers, batch_items)


@quietly
def attend(own: MarkedThread) -> None:
    """Begin or end a pause at a request for a batch.

    A pause drops the step under way, which would otherwise be cut.
    """
    if own.is_waiting:
        return
    recorder.attend()
    if not recorder.is_recording():
        drop_step(own)


class Wait:
    """The outermost next() of a loader in a thread."""

    __slots__ = ("announced", "cpu_ns", "delays_ns", "loader", "process_cpu_ns", "span")

    def __init__(self, loader: Loader, announced: int, is_pooled: bool) -> None:
        self.loader = loader
        self.announced = announced
        self.delays_ns = recorder.run_delays(recorder.BEFORE) if is_pooled else -1
        self.process_cpu_ns = time.process_time_ns() if is_pooled else -1
        self.cpu_ns = time.thread_time_ns()
        self.span = recorder.begin("data wait", announced)


def begin_wait(loader: Loader, index: int, is_pooled: bool = False) -> Wait:
    """Begin a wait for a batch.

    index: of the awaited batch, -1 for none.  is_pooled: unknown threads fetch the batch, so the
    wait records CPU time and run-queue delay of the whole process.
    """
    if not loader.is_begun:
        loader.span, loader.is_begun = recorder.begin("loader", loader.id), True
    if thread.step is None or not thread.step.is_ours():
        begin_step(thread)
    thread.stepped.clear()
    return Wait(loader, index, is_pooled)


def end_wait(wait: Wait, came: int, is_failed: bool = False) -> None:
    """End a wait.

    came: number of the batch, -1 without a batch.  is_failed: no batch came before the end of the
    pass, because a worker was killed or the data set raised.  A failed wait counts as a wait for
    the batch.
    """
    if wait.span is None:
        return
    cpu_ns = time.thread_time_ns() - wait.cpu_ns
    came = NONE_CAME if is_failed else came
    wait.span.end(wait.loader.id, cpu_ns)
    process_cpu_ns = time.process_time_ns() if wait.process_cpu_ns >= 0 else 0
    if came != wait.announced:
        other = recorder.begin("delivered", came)
        if other is not None:
            other.end(wait.loader.id, wait.announced + 1)
    if wait.process_cpu_ns >= 0:
        span = recorder.begin("wait cpu", wait.announced)
        if span is not None:
            span.end(wait.loader.id, process_cpu_ns - wait.process_cpu_ns)
        _end_delays(wait)
    if came < 0 and isinstance(sys.exc_info()[1], StopIteration):
        wait.loader.end()


def _end_delays(wait: Wait) -> None:
    after_ns = recorder.run_delays(recorder.AFTER) if wait.delays_ns >= 0 else -1
    span = recorder.begin("wait delay", wait.announced) if after_ns >= 0 else None
    if span is not None:
        span.end(wait.loader.id, after_ns - wait.delays_ns)


def wrap_next(
    original: Callable[..., Any],
    is_end: Callable[[BaseException], bool] | None = None,
    are_steps: bool = True,
) -> Callable[..., Any]:
    """Wrap the method that returns an iterator's next batch, if unknown threads fetch the batch.

    is_end: returns True for an exception that ends the pass; None: StopIteration does.  are_steps:
    batches are the steps of a process without other steps; False: batches are steps only beside
    JAX.
    """

    @functools.wraps(original)
    def following(self: Any, *args: Any, **kwargs: Any) -> Any:
        attend(thread)
        if thread.is_waiting or not recorder.is_recording():
            return original(self, *args, **kwargs)
        thread.is_waiting = True
        wait = _begin_pooled(self, are_steps)
        has_batch = is_over = False
        try:
            batch = original(self, *args, **kwargs)
            has_batch = True
            return batch
        except BaseException as error:
            is_over = isinstance(error, StopIteration) if is_end is None else is_end(error)
            if is_over and wait:
                _end_loader(wait.loader)
            raise
        finally:
            thread.is_waiting = False
            _end_pooled(wait, has_batch, not has_batch and not is_over)

    return following


@quietly
def _begin_pooled(iterator: Any, are_steps: bool) -> Wait:
    loader = getattr(iterator, "_penstock", None)
    if loader is None or loader.span is None or not loader.span.is_ours():
        loader = iterator._penstock = Loader()
        name_loader(
            getattr(iterator, "_penstock_library", type(iterator).__module__).partition(".")[0]
        )
    if are_steps or "jax" in sys.modules:
        iterate(thread)
    return begin_wait(loader, loader.next_index, is_pooled=True)


@quietly
def _end_loader(loader: Loader) -> None:
    if thread.is_iteration:
        drop_step(thread)
    loader.end()


@quietly
def _end_pooled(wait: Wait | None, has_batch: bool, is_failed: bool) -> None:
    if wait is None:
        return
    end_wait(wait, wait.announced if has_batch else -1, is_failed)
    wait.loader.next_index += has_batch


# Steps


def begin_step(own: MarkedThread) -> None:
    """Begin an automatic step, unless the program marks steps."""
    own.is_iteration = False
    if not recorder.has_explicit_steps():
        number = _n_steps[BY_ADAPTER] or _n_steps[BY_ITERATION]
        own.step = recorder.begin("step", number, recorder.OP_STEP)
        recorder.begin_balance()


def begin_first_step(own: MarkedThread) -> None:
    """Begin the first step of a thread at the first computation of the thread.

    Do nothing if a step has begun or the program marks steps.
    """
    if own.step is None or not own.step.is_ours():
        begin_step(own)


def end_step(own: MarkedThread, origin: int = BY_ADAPTER) -> None:
    """End the automatic step under way, and begin the next step."""
    step, own.step = own.step, None
    if recorder.has_explicit_steps():
        return
    if step is not None and step.is_ours():
        step.end(0, origin)
        recorder.end_balance(_n_steps[BY_ADAPTER] or _n_steps[BY_ITERATION])
        if origin != BY_CONTINUATION:
            _n_steps[origin] += 1
    recorder.attend()
    begin_step(own)


def end_optimizer(own: MarkedThread, optimizer: object) -> None:
    """Record the end of an optimizer's step: a step of the training, or part of the step before.

    The optimizers of an iteration make a single step together.  An iteration ends at a request for
    a batch, and when an optimizer steps again.
    """
    trains(own)
    if recorder.has_explicit_steps():
        recorder.begin_stretch(recorder.IN_STEP)
        return
    is_first = not own.stepped or id(optimizer) in own.stepped
    if is_first:
        own.stepped.clear()
    own.stepped.add(id(optimizer))
    end_step(own, BY_ADAPTER if is_first else BY_CONTINUATION)
    recorder.begin_stretch(recorder.AFTER_STEP)


def trains(own: MarkedThread) -> None:
    """Record, once, that a thread other than the main thread computes.

    To compute is to call a model, to compute gradients or to step an optimizer.  A wait for a
    computing thread may be a wait for computation, even if the thread reads files.
    """
    if own.is_trainer or threading.current_thread() is threading.main_thread():
        return
    span = recorder.begin("trains", 0)
    if span is not None:
        span.end(0)
        own.is_trainer = True


def iterate(own: MarkedThread) -> None:
    """Record a request for a loader's next batch, in the main thread only.

    Without other marks, a step ends here and the next step begins.  Other threads fetch for the
    main thread.
    """
    if _n_steps[BY_ADAPTER] or threading.current_thread() is not threading.main_thread():
        return
    if own.is_iteration:
        end_step(own, BY_ITERATION)
    elif own.step is None or not own.step.is_ours():
        begin_step(own)
    own.is_iteration = True


def drop_step(own: MarkedThread) -> None:
    """Drop the step under way at the end of the loop; the span stays without an end."""
    own.step = None
    own.is_iteration = False
    own.stepped.clear()


# Checkpoints


def wrap_save(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper with one span per outermost call in a thread.

    The events inside the span name the files.  A call that ends in an exception is no checkpoint:
    the span gets the mark FAILED.  name: checkpoint, restore, or load state.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def saved(*args: Any, **kwargs: Any) -> Any:
            own = thread
            if own.saves or not recorder.is_recording():
                return original(*args, **kwargs)
            own.saves = 1
            span, ended = None, (0, 0)
            try:
                span = _begin_save(name)
                result = original(*args, **kwargs)
                _watch_later(result)
                return result
            except BaseException as error:
                ended = _failure(error) or (0, FAILED)
                raise
            finally:
                own.saves = 0
                if span is not None:
                    span.end(*ended)

        return saved

    return wrapper


@quietly
def _begin_save(name: str) -> recorder.Span | None:
    return recorder.begin(name, next(_serials))


@quietly
def _failure(error: BaseException) -> tuple[int, int]:
    """Return a and b of a failed span: the errno of the first OSError in the chain, and FAILED.

    The error is marked, so that later handlers do not count a second failure.
    """
    cause: BaseException | None = error
    for _ in range(8):  # deeper than any known chain
        if cause is None or isinstance(cause, OSError):
            break
        cause = cause.__cause__ or cause.__context__
    number = cause.errno if isinstance(cause, OSError) and cause.errno else 0
    error._penstock_told = True  # type: ignore[attr-defined]
    return number & 0xFFFF, FAILED


@quietly
def _watch_later(result: Any) -> None:
    """Watch the future of a save in the background for a failure."""
    future = getattr(result, "upload_completion", result)  # of torch's AsyncSaveResponse
    if hasattr(future, "add_done_callback"):
        future.add_done_callback(_ended_later)


@quietly
def _ended_later(future: Any) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        failed_later(error)


@quietly
def failed_later(error: BaseException) -> None:
    """Record the failure of a background save, where the caller may learn of the failure.

    The record is a tick.  A failure recorded before is not recorded again.
    """
    if getattr(error, "_penstock_told", False):
        return
    span = recorder.begin("save failed", next(_serials))
    if span is not None:
        span.end(*_failure(error))


def wrap_wait_for_save(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a wait for a background save that raises the save's error."""

    @functools.wraps(original)
    def waited(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            failed_later(error)
            raise

    return waited
