"""Map a span in a DFTracer trace to a meaning: a step, a data wait, a save, a restore, or only time
of a category.

Knows the names of DFTracer's AI layers and of DLIO; knows no file and no table.  A category
measures time, but counts nothing: a save of DLIO is a span `save_checkpoint` around a `capture` for
each part of the state, and making the checkpointer has an equal category.  So spans are counted by
name, and only the outermost spans of a thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LOADS", "TraceMeaning", "TraceSpan", "meant", "name_of"]

# Layers of DFAnalyzer's presets for DLIO.
_WAITS = ("fetch.iter", "fetch-data.iter", "<module>.iter", "loop.iter")
_COMPUTE = ("compute", "ai_framework")
_LOADERS = ("data_loader", "dataloader")
# Span names with a meaning of Penstock's own: another writer's spans get other names.
_TAKEN = frozenset(
    (
        "step", "data wait", "wait cpu", "delivered", "fetch", "fetch delay", "fetch faults",
        "worker", "loader", "loader start", "loader end", "checkpoint", "restore", "barrier",
        "graph", "get next", "paused", "window",
    )
)  # fmt: skip
LOADS = ("reader", *_LOADERS, "dataset", "data")  # categories of making batches


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span of the trace; times in ns."""

    start_ns: int
    ns: int
    process: int
    thread: int
    name: str
    category: str
    index: int | None

    @property
    def plain(self) -> str:
        """Return the name without class or loop: the last word of `TorchFramework.compute`."""
        return self.name.rpartition(".")[2].lower()

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.ns


@dataclass(frozen=True, slots=True)
class TraceMeaning:
    """Spans with their meanings: step, data wait, checkpoint, restore, or "".

    without_steps: names of computations without an iteration.
    """

    spans: tuple[tuple[TraceSpan, str], ...]
    without_steps: tuple[str, ...]


def meant(spans: Sequence[TraceSpan]) -> TraceMeaning:
    """Decide for each span of a trace: a step, a data wait, a save, a restore or another span."""
    meanings: dict[int, str] = {}  # by position; a position without an entry has no meaning
    for meaning, is_meant in (("checkpoint", _is_save), ("restore", _is_restore)):
        meanings |= dict.fromkeys(_outermost(spans, _positions(spans, is_meant)), meaning)
    waits = _positions(spans, lambda span: span.name in _WAITS)
    computing = _positions(spans, lambda span: span.category in _COMPUTE)
    steps = _steps_of_all(spans, {spans[i].process for i in (*waits, *computing)})
    training = {spans[i].process for i in steps}
    if not waits:  # a fetch not written as a loop; in a worker the fetch makes a batch
        waits = _positions(spans, lambda span: _is_fetch(span) and span.process in training)
    meanings |= dict.fromkeys(waits, "data wait") | dict.fromkeys(steps, "step")
    return TraceMeaning(
        spans=tuple((span, meanings.get(i, "")) for i, span in enumerate(spans)),
        without_steps=tuple(sorted(_without_steps(spans, training))),
    )


def _positions(spans: Sequence[TraceSpan], is_meant: Callable[[TraceSpan], bool]) -> list[int]:
    return [i for i, span in enumerate(spans) if is_meant(span)]


def _steps_of_all(spans: Sequence[TraceSpan], processes: set[int]) -> set[int]:
    """Return the positions of the iterations of the processes."""
    steps: set[int] = set()
    for process in processes:
        steps.update(_steps(spans, (i for i, s in enumerate(spans) if s.process == process)))
    return steps


def _without_steps(spans: Sequence[TraceSpan], training: set[int]) -> set[str]:
    """Return the names of computations in processes without iterations."""
    return {s.name for s in spans if s.category == "compute" and s.process not in training}


def name_of(span: TraceSpan, meaning: str) -> str:
    """Return the name of a span in Penstock's tables."""
    if meaning:
        return meaning
    return f"{span.category}.{span.name}" if span.name in _TAKEN else span.name


def _steps(spans: Sequence[TraceSpan], positions: Iterable[int]) -> list[int]:
    """Return the iterations of a process: the outermost `compute`; else the bodies of the loop over
    batches; else the optimizer's steps, a step per iteration."""
    positions = list(positions)
    candidates = (
        [i for i in positions if spans[i].category in _COMPUTE and spans[i].plain == "compute"],
        [i for i in positions if _is_body(spans[i])],
        [i for i in positions if spans[i].category == "compute" and spans[i].plain == "step"],
    )
    return _outermost(spans, next((some for some in candidates if some), []))


def _is_body(span: TraceSpan) -> bool:
    loop, _, part = span.name.rpartition(".")
    return part in ("block", "yield") and f"{loop}.iter" in _WAITS


def _is_fetch(span: TraceSpan) -> bool:
    return span.name == "fetch" and span.category in _LOADERS


def _is_save(span: TraceSpan) -> bool:
    return span.category == "checkpoint" and (
        span.plain in ("checkpoint", "capture") or span.plain.startswith("save")
    )


def _is_restore(span: TraceSpan) -> bool:
    return span.category == "checkpoint" and (
        span.plain in ("restart", "restore") or span.plain.startswith("load")
    )


def _outermost(spans: Sequence[TraceSpan], positions: Iterable[int]) -> list[int]:
    """Return the spans inside no other span of the thread.

    Ends are cut to the trace's unit, so a span may seem to end after the enclosing span.
    """
    ends: dict[int, int] = {}  # by thread
    kept = []
    for i in sorted(positions, key=lambda i: (spans[i].start_ns, -spans[i].ns)):
        span = spans[i]
        if span.start_ns >= ends.get(span.thread, -1):
            kept.append(i)
            ends[span.thread] = span.end_ns
    return kept
