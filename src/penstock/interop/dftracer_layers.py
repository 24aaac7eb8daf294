"""What a span of a DFTracer trace is: a step, a data wait, a save, a restore, or only time of its
category.  Knows the names of DFTracer's AI layers and of DLIO; knows no file and no table.

A category says where time goes; it counts nothing.  One save of DLIO is a span `save_checkpoint`
around one `capture` for each part of the state, and the making of the checkpointer is of that
category too.  So a span is counted by its name, and only the outermost one of a thread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LOADS", "Meant", "Told", "meant", "name_of"]

# Layers of DFAnalyzer's presets for DLIO.
_WAITS = ("fetch.iter", "fetch-data.iter", "<module>.iter", "loop.iter")
_COMPUTE = ("compute", "ai_framework")
_LOADERS = ("data_loader", "dataloader")
# Span names with a meaning of Penstock's own: another writer's spans of these names keep apart.
_TAKEN = frozenset(
    (
        "step", "data wait", "wait cpu", "delivered", "fetch", "fetch delay", "fetch faults",
        "worker", "loader", "loader start", "loader end", "checkpoint", "restore", "barrier",
        "graph", "get next", "paused", "window",
    )
)  # fmt: skip
LOADS = ("reader", *_LOADERS, "dataset", "data")  # what makes batches


@dataclass(frozen=True, slots=True)
class Told:
    """A span as the trace has it; times in ns."""

    start_ns: int
    ns: int
    process: int
    thread: int
    name: str
    category: str
    index: int | None

    @property
    def plain(self) -> str:
        """The name without its class or loop: of `TorchFramework.compute` the last word."""
        return self.name.rpartition(".")[2].lower()

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.ns


@dataclass(frozen=True, slots=True)
class Meant:
    """Spans with what they are: step, data wait, checkpoint, restore, or "" for another.

    without_steps: names of spans of a computation none of which is an iteration.
    """

    spans: tuple[tuple[Told, str], ...]
    without_steps: tuple[str, ...]


def meant(spans: Sequence[Told]) -> Meant:
    """Decides for all spans of a trace what each is."""
    found: dict[int, str] = {}  # by position; what is not in it is only time of its category
    positions = range(len(spans))
    for meaning, is_it in (("checkpoint", _is_save), ("restore", _is_restore)):
        of_it = [i for i in positions if is_it(spans[i])]
        found |= dict.fromkeys(_outermost(spans, of_it), meaning)
    waits = [i for i in positions if spans[i].name in _WAITS]
    computing = [i for i in positions if spans[i].category in _COMPUTE]
    steps: set[int] = set()
    for process in {spans[i].process for i in (*waits, *computing)}:
        steps.update(_steps(spans, [i for i in positions if spans[i].process == process]))
    training = {spans[i].process for i in steps}
    if not waits:  # a fetch that was not written as a loop; in a worker it makes a batch
        waits = [i for i in positions if _is_fetch(spans[i]) and spans[i].process in training]
    found |= dict.fromkeys(waits, "data wait") | dict.fromkeys(steps, "step")
    lost = {
        spans[i].name
        for i in computing
        if spans[i].process not in training and spans[i].category == "compute"
    }
    return Meant(
        spans=tuple((span, found.get(i, "")) for i, span in enumerate(spans)),
        without_steps=tuple(sorted(lost)),
    )


def name_of(span: Told, meaning: str) -> str:
    """The name of a span in Penstock's tables."""
    if meaning:
        return meaning
    return f"{span.category}.{span.name}" if span.name in _TAKEN else span.name


def _steps(spans: Sequence[Told], positions: Iterable[int]) -> list[int]:
    """The iterations of a process: its outermost `compute`; else the bodies of the loop over the
    batches; else the optimizer's steps, of which each iteration has one."""
    positions = list(positions)
    candidates = (
        [i for i in positions if spans[i].category in _COMPUTE and spans[i].plain == "compute"],
        [i for i in positions if _is_body(spans[i])],
        [i for i in positions if spans[i].category == "compute" and spans[i].plain == "step"],
    )
    return _outermost(spans, next((some for some in candidates if some), []))


def _is_body(span: Told) -> bool:
    loop, _, part = span.name.rpartition(".")
    return part in ("block", "yield") and f"{loop}.iter" in _WAITS


def _is_fetch(span: Told) -> bool:
    return span.name == "fetch" and span.category in _LOADERS


def _is_save(span: Told) -> bool:
    return span.category == "checkpoint" and (
        span.plain in ("checkpoint", "capture") or span.plain.startswith("save")
    )


def _is_restore(span: Told) -> bool:
    return span.category == "checkpoint" and (
        span.plain in ("restart", "restore") or span.plain.startswith("load")
    )


def _outermost(spans: Sequence[Told], positions: Iterable[int]) -> list[int]:
    """Those that lie in no other of the same thread.  Ends are cut to the trace's unit, so that a
    span may seem to end after the one that it lies in."""
    ends: dict[int, int] = {}  # by thread
    kept = []
    for i in sorted(positions, key=lambda i: (spans[i].start_ns, -spans[i].ns)):
        span = spans[i]
        if span.start_ns >= ends.get(span.thread, -1):
            kept.append(i)
            ends[span.thread] = span.end_ns
    return kept
