"""Record the process: windows, steps and spans.

Loads the native library on first use.  Knows the functions of native/recorder.h; knows nothing of
files, bytes or frameworks.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import _local, get_ident

from penstock.errors import RecorderError
from penstock.installed import native_part

# A training program imports this file before all others.  Importing pathlib, typing, functools and
# threading here would make the import ten times slower (12 ms instead of 1 ms), so these modules
# are imported for type checking only, or inside functions.
# ruff: noqa: PTH100
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, ParamSpec, TypeVar

    from penstock.recording.faultwatch import FaultWatch

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = [
    "OP_SPAN",
    "OP_STEP",
    "Span",
    "attend",
    "begin",
    "begin_balance",
    "begin_stretch",
    "connection",
    "end_balance",
    "end_stretch",
    "epoch",
    "has_explicit_steps",
    "in_stretch",
    "is_attached",
    "is_recording",
    "is_stepping",
    "look",
    "note",
    "on_start",
    "on_stretch",
    "record",
    "request",
    "run_delay_reader",
    "run_delays",
    "span",
    "step",
    "unburst",
]

OP_STEP = 129  # operation numbers as in native/events.h; a test compares them
OP_SPAN = 130
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200  # importing inspect costs 8 ms
RECORD, PAUSE = 1, 2  # as in control.py, where requests are written
NOT_LOOKED, NOBODY_ASKS = (1,), (0,)  # values of `page` for a process without a mapped page
IDLE_SPANS = 256  # distinct names kept; numbered names would grow without end
IDLE_STEPS = 3  # two threads may be between step() and the begin of the step
WITHOUT_WITH = (
    "steps marked by penstock.step(): without `with`, no step begins; write `with penstock.step():`"
)

# Values for the begin of an input stretch (the span's index) and for the end (the span's a): see
# docs/FORMAT.md.
AFTER_STEP, IN_STEP, AFTER_BACKWARD, AFTER_EVALUATION = range(4)
STEP_ENDED, FORWARD, STEP_BEGAN, EVALUATION, BACKWARD, OPTIMIZER = range(6)


class _Native:
    """The functions of the native library: bytes in, numbers out (native/recorder.h).

    library: a ctypes.PyDLL, because no function blocks.  Raises AttributeError: the library is not
    penstock's.
    """

    def __init__(self, library: Any) -> None:
        import ctypes

        text, number, wide = ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64

        def bound(name: str, result: Any, *arguments: Any) -> Any:
            function = library["penstock_" + name]
            function.restype, function.argtypes = result, arguments
            return function

        self.start: Callable[[bytes, int], int] = bound("start", number, text, wide)
        self.stop: Callable[[], int] = bound("stop", number)
        self.state: Callable[[], int] = bound("state", number)
        self.reason: Callable[[], bytes | None] = bound("reason", text)
        self.folder: Callable[[], bytes | None] = bound("folder", text)
        self.name: Callable[[bytes], int] = bound("name", ctypes.c_uint32, text)
        self.begin: Callable[[int, int, int], int] = bound(
            "begin", wide, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64
        )
        self.end: Callable[[int, int, int], int] = bound("end", number, wide, wide, wide)
        self.note: Callable[[bytes, bytes], None] = bound("note", None, text, text)
        self.pause: Callable[[int], int] | None = None  # absent from older libraries
        self.run_delay: Callable[[], int] | None = None
        self.balance: Callable[[int, int, int], int] | None = None
        self.run_delays: Callable[[int], int] | None = None
        self.staged: Callable[[bytes], int] | None = None
        self.unburst: Callable[[], None] | None = None
        self.request: Callable[[bytes, bytes, bytes], None] | None = None
        if hasattr(library, "penstock_pause"):
            self.pause = bound("pause", number, ctypes.c_int64)
            self.resume: Callable[[], int] = bound("resume", number)
            self.control: Callable[[], int | None] = bound("control", ctypes.c_void_p)
        if hasattr(library, "penstock_run_delay"):
            self.run_delay = bound("run_delay", ctypes.c_int64)
        if hasattr(library, "penstock_balance"):
            self.balance = bound("balance", wide, wide, ctypes.c_uint32, ctypes.c_int64)
        if hasattr(library, "penstock_run_delays"):
            self.run_delays = bound("run_delays", ctypes.c_int64, number)
        if hasattr(library, "penstock_staged"):
            self.staged = bound("staged", number, text)
        if hasattr(library, "penstock_unburst"):
            self.unburst = bound("unburst", None)
        if hasattr(library, "penstock_request"):
            self.request = bound("request", None, text, text, text)
            self.connection: Callable[[int], int] = bound("connection", wide, number)


class _Process:
    """The state of this module in the present process."""

    def __init__(self) -> None:
        self.native: _Native | None = None
        self.is_on: bool | None = None  # None: not yet asked of the native library
        self.is_run = False  # `penstock run` loaded the recorder and owns the window
        self.window: record | None = None
        self.epoch = object()  # replaced at each start, stop and fork: older handles are void
        self.lap = object()  # like epoch, and replaced at each pause too: no balance spans a pause
        self.watch: Callable[[bool], None] | None = None  # see on_stretch
        self.names: dict[str, int] = {}
        self.next_step = 0
        self.has_explicit_steps = False
        self.idle_steps = 0  # calls of step() since a step has begun
        self.has_told = False  # True once the CPUs of the process are noted
        self.starters: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self.is_paused = False
        self.page: Sequence[int] = NOT_LOOKED  # the current request to the run: see control.py
        self.asked = 0  # the latest request carried out

    def forget(self) -> None:
        """Drop the handles and name numbers of the log that was open."""
        self.epoch, self.lap = object(), object()
        self.names.clear()


_process = _Process()


def look() -> bool:
    """Ask the native library, if present, whether the process is recorded; return the answer."""
    native = _process.native
    if native is None:
        import ctypes

        everything: Any = ctypes.PyDLL(None)  # finds the symbols of a preloaded library
        try:
            native = _bind(everything)
        except AttributeError:  # no library, or not penstock's
            _process.is_on = False
            return False
    state = native.state()
    _process.is_on, _process.is_paused = state == 1, state == 3
    window = _process.window
    _process.is_run = state in (1, 3) and (window is None or window.is_mark)
    if _process.is_run and _process.is_on and not _process.has_told:
        _process.has_told = True  # a forked child has the CPUs of the parent
        _tell_cpus(native)
    return _process.is_on


def _tell_cpus(native: _Native) -> None:
    """Note the CPUs of the process: a launcher does not know the CPU binding of the children."""
    from penstock.recording import machine

    try:
        value = machine.cpus()
        native.note(b"cpus of process", _bytes(value))
        group = value.rpartition("\t")[2]
        if group:
            _follow_quota(native, group)
    except (OSError, ValueError, RecursionError):
        pass


def _follow_quota(native: _Native, group: str) -> None:
    """Note, when the process ends, how often the control group's quota stopped the process."""
    import atexit

    from penstock.recording import machine

    before, pid = machine.throttled(group), os.getpid()

    def tell() -> None:
        after = machine.throttled(group) if os.getpid() == pid else None
        if before is not None and after is not None:
            times, seconds = after[0] - before[0], after[1] - before[1]
            native.note(b"cpu throttled", _bytes(f"{times}\t{seconds:.6f}\t{group}"))

    atexit.register(tell)


def unburst() -> None:
    """Let this process see the files at their paths from now on, and write new files there.

    Links to the fast tier are visible as links.  A run with a burst buffer may have started this
    process.
    """
    if _process.native is None:
        look()
    if _process.native is not None and _process.native.unburst is not None:
        _process.native.unburst()


def is_recording() -> bool:
    """Return True if a window is open, as last seen by this module.

    After the recorder has given up, the result is still True, and span handles are 0.
    """
    is_on = _process.is_on
    return look() if is_on is None else is_on


def is_attached() -> bool:
    """Return True if the process is recorded, or paused until `penstock window` resumes it."""
    return is_recording() or _process.is_paused


def attend() -> None:
    """Carry out a new request of `penstock window`: pause or resume.

    Called at the begin and end of a step, because no measure counts the time in between.  Takes two
    loads and a comparison.
    """
    if _process.page[0] != _process.asked:
        _obey()


def _obey() -> None:
    native = _process.native
    if _process.is_on is None:
        look()
        native = _process.native
    if native is None or native.pause is None or not (_process.is_on or _process.is_paused):
        _process.page, _process.asked = NOBODY_ASKS, 0
        return
    if _process.page is NOT_LOOKED:
        _process.page = _mapped(native.control())
    asked = _process.page[0]
    wish, is_done = asked & 0xFFFFFFFF, True
    if wish == PAUSE and _process.is_on:
        is_done = native.pause(asked >> 32) == 0
    elif wish == RECORD and _process.is_paused:
        is_done = native.resume() == 0  # nonzero: another thread is resuming
    if is_done:
        _process.asked, _process.lap = asked, object()
        state = native.state()
        _process.is_on, _process.is_paused = state == 1, state == 3


def _mapped(address: int | None) -> Sequence[int]:
    """Return the 8 bytes of the page as a view; reading the view is a single load."""
    if not address:
        return NOBODY_ASKS
    import ctypes

    return memoryview((ctypes.c_uint64 * 1).from_address(address)).cast("B").cast("Q")


def folder() -> str | None:
    """Return the run folder of this process; None: not recorded."""
    native = _process.native
    path = native.folder() if native is not None and is_attached() else None
    return os.fsdecode(path) if path else None


def has_explicit_steps() -> bool:
    """Return True if the program has marked a step itself; adapters then mark no steps."""
    return _process.has_explicit_steps


def on_start(prepare: Callable[[], None], call: Callable[[], None]) -> None:
    """Call `prepare` before each window of record() begins, and `call` after."""
    _process.starters.append((prepare, call))


def note(key: str, value: str) -> None:
    """Write a fact about the process to the log; do nothing when not recording."""
    if is_recording() and _process.native is not None:
        _process.native.note(_bytes(key), _bytes(value))


def request(name: bytes, path: bytes, record: bytes) -> None:
    """Write an ended HTTP request to the log; do nothing when not recording.

    The format of the record is in native/recorder.h.
    """
    if _process.native is not None and _process.native.request is not None:
        _process.native.request(name, path, record)


def connection(descriptor: int) -> int:
    """Return the connection number of a descriptor; 0: no known connection."""
    native = _process.native
    return native.connection(descriptor) if native is not None and native.request else 0


def epoch() -> object:
    """Return an object that is replaced at each start, stop and fork."""
    return _process.epoch


def run_delay_reader() -> Callable[[], int] | None:
    """Return a function for the run-queue delay of the calling thread.

    The function returns the ns for which the thread was ready to run but had no CPU, or -1 if the
    kernel does not count the delay; the function causes no events.  None: the library lacks the
    function.
    """
    return _process.native.run_delay if _process.native is not None else None


class _Own(_local):
    """The balance and the input stretch of a thread with training steps."""

    # lap of the balance and the stretch; if not the process's lap, the thread has begun no step
    lap: object = None
    balance = 0  # handle of the balance span
    stretch: Span | None = None
    began = AFTER_STEP
    cpu_ns = 0


_own = _Own()


def is_stepping() -> bool:
    """Return True if the calling thread has begun a step and recording goes on."""
    return _own.lap is _process.lap


def begin_balance() -> None:
    """Begin the balance of a step in the calling thread; the end of the step ends the balance."""
    if _own.lap is not _process.lap and is_recording():
        _own.lap, _own.balance, _own.stretch = _process.lap, 0, None
        _turn_balance(-1)


def end_balance(index: int) -> None:
    """End the balance of step `index` in the calling thread, and begin the next."""
    if _own.lap is _process.lap:
        _turn_balance(index)


def _turn_balance(index: int) -> None:
    native = _process.native
    if native is not None and native.balance is not None:
        number = _process.names.get("step balance") or _number("step balance", native)
        _own.balance = native.balance(_own.balance, number, index)


def on_stretch(watch: Callable[[bool], None]) -> None:
    """Set the function to call at the begin and end of an input stretch.

    The thread of the stretch calls `watch(True)` at the begin, to look for the thread's next
    computation, and `watch(False)` at the end.
    """
    _process.watch = watch


def begin_stretch(began: int) -> None:
    """Begin an input stretch of the calling thread.

    Until end_stretch() the thread computes nothing and may be waiting for the next batch.
    """
    own = _own
    if own.lap is not _process.lap:
        return
    end_stretch(STEP_ENDED)
    own.stretch = begin("input stretch", began)
    if own.stretch is not None:
        own.began, own.cpu_ns = began, time.thread_time_ns()
        if _process.watch is not None and began != AFTER_EVALUATION:
            _process.watch(True)


def end_stretch(ended: int) -> None:
    """End the input stretch of the calling thread, if open.

    Called when a computation begins or the step ends.
    """
    own = _own
    stretch, own.stretch = own.stretch, None
    if stretch is None:
        return
    if _process.watch is not None:
        _process.watch(False)
    if own.lap is not _process.lap:
        return  # a pause lies inside the stretch
    stretch.end(ended, time.thread_time_ns() - own.cpu_ns)
    if ended == EVALUATION:  # the end of an evaluation is not observed
        begin_stretch(AFTER_EVALUATION)


def in_stretch() -> bool:
    """Return True if an input stretch of the calling thread is open."""
    return _own.stretch is not None and _own.lap is _process.lap


def _number(name: str, native: _Native) -> int:
    number = native.name(_bytes(name))
    if number:
        _process.names[name] = number
    return number


AFTER, BEFORE, BEFORE_GRAPH = range(3)  # as in native/recorder.h


def run_delays(when: int) -> int:
    """Return the ns for which threads of the process were ready to run but had no CPU.

    The number is the sum over all threads since the first call.  Call with BEFORE and AFTER a wait.
    -1: not known, or called with BEFORE a moment ago (a call takes time).
    """
    native = _process.native
    if native is None or native.run_delays is None:
        return -1
    return native.run_delays(when)


def begin(name: str, index: int = -1, op: int = OP_SPAN) -> Span | None:
    """Begin a span for an adapter; return None when not recording.

    The caller ends the span with end().
    """
    if not is_recording():
        return None
    opened = Span(name, index, op)
    opened.begin()
    return opened


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _bind(library: Any) -> _Native:
    native = _process.native = _Native(library)
    os.register_at_fork(after_in_child=_process.forget)
    return native


def _load() -> _Native:
    """Return the preloaded library, else the package's own.

    Raises RecorderError: the library is missing or does not load.
    """
    look()
    if _process.native is not None:
        return _process.native
    import ctypes

    try:
        return _bind(ctypes.PyDLL(_library()))
    except (OSError, AttributeError) as error:
        raise RecorderError(
            f"the recorder does not load: {error}; `make native` builds it, or reinstall penstock"
        ) from error


def _library() -> str:
    return os.environ.get("PENSTOCK_LIBRARY") or native_part("librec.so")


def _failure(error: int, folder: str, native: _Native) -> RecorderError:
    """Return the error for an errno of penstock_start."""
    reason = os.fsdecode(native.reason() or b"")
    because = f" ({reason})" if reason else ""
    if error == errno.EALREADY:
        place = os.fsdecode(native.folder() or b"") or "another folder"
        return RecorderError(f"a window is open already, into {place}{because}; stop it first")
    if error == errno.ENOTSUP:
        return RecorderError(
            f"this libc or kernel cannot be recorded{because}; docs/limits.md says what is needed"
        )
    return RecorderError(
        f"{folder}: no log can be written: {os.strerror(error)}{because}; choose another folder"
    )


def _stage(native: _Native, path: str) -> None:
    """Let opens find the copies of a map from the next window on.  Raises RecorderError."""
    if native.staged is None:
        raise RecorderError("this recorder is older than staging; `make native` builds it anew")
    result = native.staged(os.fsencode(os.path.abspath(path)))
    if result == -errno.EALREADY:
        raise RecorderError(
            f"{path}: a window is open already; under `penstock run` name the tier with --staged"
        )
    if result < 0:
        because = {errno.EINVAL: "no map that this version knows", errno.EPERM: "another user's"}
        said = because.get(-result) or os.strerror(-result)
        raise RecorderError(f"{path}: {said}; `penstock stage copy` makes it")


# the fact `page faults` of a window
NOT_ASKED = "not asked for: penstock.record(folder, faults=True)"


class record:  # noqa: N801 - reads as the verb it is: with penstock.record(folder)
    """Record the process into `folder` from now until stop(), or to the end of a `with`.

    folder: made if absent.  budget_bytes: disk space for single events, 0 for 1 GiB; beyond the
    budget the counters stay exact.  Several windows may follow each other, into the same folder or
    into several.  Under `penstock run` no new recording begins: the window becomes a span of the
    run, and a warning names the run's folder.  staged: the map of a tier, from
    penstock.stage.map_of(tier).  From this window on, files opened for reading are read from their
    copies on the tier, in every window of this process.  faults: sample page faults of mapped files
    too; a window then begins some 20 ms later.

    Raises RecorderError: a window is open, the folder cannot be written, this system cannot be
    recorded, or the map is invalid.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        budget_bytes: int = 0,
        staged: str | os.PathLike[str] | None = None,
        faults: bool = False,
    ) -> None:
        self.folder = os.fspath(folder)
        self.is_mark = False  # True: a span in the recording of `penstock run`, not a window
        self._faults: FaultWatch | None = None
        self._span: Span | None = None
        if budget_bytes < 0:
            raise RecorderError(f"a budget of {budget_bytes} bytes is none; 0 means 1 GiB")
        native = _load()
        if _process.window is not None:
            raise RecorderError(
                f"a window is open already, into {_process.window.folder}; stop it first"
            )
        if staged is not None:
            _stage(native, os.fspath(staged))
        for prepare, _ in _process.starters:
            prepare()  # before the window: reading penstock's own modules is not the job's I/O
        if _process.is_run:
            self._mark_in_run(native)
        else:
            self._start(native, budget_bytes, faults)
        _process.window = self
        for _, call in _process.starters:
            call()

    def _mark_in_run(self, native: _Native) -> None:
        import warnings

        self.is_mark = True
        self._span = begin(f"window {self.folder}")
        warnings.warn(
            f"`penstock run` records this process already: the data goes to "
            f"{os.fsdecode(native.folder() or b'')}, as a span named 'window {self.folder}'",
            stacklevel=3,
        )

    def _start(self, native: _Native, budget_bytes: int, faults: bool) -> None:
        from penstock.safe import drafts

        try:
            drafts.run_folder(self.folder)
        except OSError as error:
            raise RecorderError(
                f"{self.folder}: cannot be made: {error.strerror}; choose another folder"
            ) from error
        _process.page, _process.asked = NOT_LOOKED, 0
        from penstock.recording import machine

        # Facts are read, and the fault sampler is started, before the window: neither is the job's
        # I/O.
        facts = [*machine.facts(), ("cpus of process", machine.cpus())]
        _process.has_told = True
        if faults:
            from penstock.recording.faultwatch import MEASURED, FaultWatch

            self._faults = FaultWatch(self.folder, _library())
            if self._faults.state != MEASURED:
                facts = [*facts, ("page faults", self._faults.state)]
        else:
            facts = [*facts, ("page faults", NOT_ASKED)]
        result = native.start(os.fsencode(os.path.abspath(self.folder)), budget_bytes)
        if result < 0:
            if self._faults is not None:
                self._faults.drop()
            raise _failure(-result, self.folder, native)
        _process.forget()
        _process.is_on = True
        for key, value in facts:
            note(key, value)

    def stop(self) -> None:
        """End the window and restore the process.  Raises RecorderError: the window is not open."""
        if _process.window is not self:
            raise RecorderError(f"the window into {self.folder} is not open; it was stopped before")
        _process.window = None
        if self.is_mark:
            if self._span is not None:
                self._span.end()
            return
        native = _load()
        _process.is_on = _process.is_paused = False
        _process.forget()
        result = native.stop()
        if self._faults is not None:
            self._faults.end()
        # EINVAL: the recording ended early; the log has the reason
        if result < 0 and result != -errno.EINVAL:
            raise RecorderError(
                f"{self.folder}: the window did not end well: {os.strerror(-result)}; "
                "what was recorded can be read"
            )

    def __enter__(self) -> record:
        return self

    def __exit__(self, *error: object) -> None:
        if _process.window is self:
            self.stop()


class Span:
    """A stretch of time of one thread while recording.

    A span ended in another thread stays unfinished.
    """

    __slots__ = ("_epoch", "_handle", "_index", "_name", "_op", "_thread")

    def __init__(self, name: str, index: int = -1, op: int = OP_SPAN) -> None:
        self._name = name
        self._index = index
        self._op = op
        self._handle = 0

    def begin(self) -> None:
        """Begin the span now."""
        native = _process.native
        if native is None:
            return
        number = _process.names.get(self._name) or _number(str(self._name), native)
        self._epoch = _process.epoch
        self._thread = get_ident()
        try:
            self._handle = native.begin(self._op, number, self._index)
        except Exception:  # an index other than an int must not end the training
            self._handle = native.begin(self._op, number, -1)

    def end(self, a: int = 0, b: int = 0) -> None:
        """End the span, once, in the thread that began the span.

        a, b: numbers of 48 bits; the name of the span defines the meaning.
        """
        handle, self._handle = self._handle, 0
        if handle and self.is_ours() and _process.native is not None:
            _process.native.end(handle, a, b)

    def is_ours(self) -> bool:
        """Return True if this thread began the span, in this process and in the open window."""
        return self._epoch is _process.epoch and self._thread == get_ident()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.end()
        else:  # as adapters.marks records a failed save
            number = getattr(error, "errno", None) if isinstance(error, OSError) else 0
            self.end(number if isinstance(number, int) and 0 <= number < 1 << 16 else 0, 1)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return _decorated(self._name, self._index, function)


class _Step(Span):
    """A training step marked by the program."""

    __slots__ = ()

    def begin(self) -> None:
        _process.has_explicit_steps = True
        _process.idle_steps = 0
        begin_balance()
        end_stretch(STEP_BEGAN)
        super().begin()
        if _process.watch is not None:  # the program may take the batch inside the step
            begin_stretch(IN_STEP)

    def __exit__(self, *error: object) -> None:
        is_ours = bool(self._handle) and self.is_ours()
        if is_ours:
            end_stretch(STEP_ENDED)
        self.end(0, 1)  # b = 1: the program marked the step
        if is_ours:
            end_balance(self._index)
            begin_stretch(AFTER_STEP)


class _Idle:
    """The result of span() while nothing is recorded.

    As a decorator, _Idle checks at each call whether recording has begun.
    """

    __slots__ = ("_index", "_name")

    def __init__(self, name: str, index: int = -1) -> None:
        self._name = name
        self._index = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return _decorated(self._name, self._index, function)


class _Idles(dict[str, _Idle]):
    """An idle span per name, so span() allocates nothing while nothing is recorded."""

    def __missing__(self, name: str) -> _Idle:
        if len(self) >= IDLE_SPANS:
            self.clear()
        self[name] = idle = _Idle(name)
        return idle


_idles = _Idles()
_idle_step = _Idle("step")


def span(name: str, index: int = -1) -> Span | _Idle:
    """Mark a named stretch, as a context manager or a decorator; almost free when not recording.

    index: a number of the caller's choice, such as the epoch; -1 for none.  A span object belongs
    to the window open when the object was made; a decorated function checks for a window at each
    call.
    """
    if _process.is_on or (_process.is_on is None and look()):
        return Span(name, index)
    return _idles[name] if index == -1 else _Idle(name, index)


def step(index: int | None = None) -> Span | _Idle:
    """Mark a training step, as a context manager; almost free when not recording.

    index: the number of the step; None: the previous step's number plus one, beginning with 0.  The
    first such step stops the adapters' automatic steps in this process.
    """
    if _process.page[0] != _process.asked:
        _obey()
    if not (_process.is_on or (_process.is_on is None and look())):
        _process.has_explicit_steps |= _process.is_paused
        return _idle_step
    _process.idle_steps += 1
    if _process.idle_steps == IDLE_STEPS:
        note("not measured", WITHOUT_WITH)
    if index is None:
        index = _process.next_step
    try:
        index = int(index)
        _process.next_step = index + 1
    except (TypeError, ValueError):
        index = -1
    return _Step("step", index, OP_STEP)


def _decorated(name: str, index: int, function: Callable[P, R]) -> Callable[P, R]:
    import functools

    flags: int = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise RecorderError(
            f"span({name!r}): a generator runs in pieces and has no single stretch; "
            "use `with penstock.span(...)` inside it"
        )
    if flags & CO_COROUTINE:
        awaited: Callable[..., Any] = function

        @functools.wraps(function)
        async def spanned(*args: P.args, **kwargs: P.kwargs) -> Any:
            with span(name, index):
                return await awaited(*args, **kwargs)

        return spanned  # type: ignore[return-value]  # R is the coroutine of what it returns

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with span(name, index):
            return function(*args, **kwargs)

    return called
