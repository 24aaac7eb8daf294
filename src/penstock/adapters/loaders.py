"""Mark waits at further loaders: torchdata.nodes, SPDL, Hugging Face datasets, and others.

The others are MosaicML streaming, litdata, webdataset, and penstock.feed.  None of the loaders
reports which thread or process makes a batch, so waits are pooled.  For a loader read through
torch's DataLoader, torch's adapter marks the waits.  Imports none of the packages.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly, thread, wrap, wrap_next
from penstock.recording import recorder

__all__ = ["PATCHES"]

# batches are no steps: preparing data is no training
_waited = functools.partial(wrap_next, are_steps=False)


class _Followed:
    """Stands in for a generator: asks the generator for items, and marks the waits."""

    __slots__ = ("_penstock", "_penstock_library", "inner")

    def __init__(self, inner: Any, library: str) -> None:
        self._penstock: Any = None
        self.inner = inner
        self._penstock_library = library

    def __iter__(self) -> _Followed:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @_waited
    def __next__(self) -> Any:
        return next(self.inner)


def _follow(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that makes an iterator, usually a generator."""

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> Any:
        inner = original(self, *args, **kwargs)
        if thread.is_waiting or not recorder.is_attached():
            return inner  # part of another loader's work
        return _Followed(inner, original.__module__)

    return made


# torchdata.nodes: a loader's iterator is a node too, and a program may read any node directly.
# Nodes read other nodes in threads of their own, for which the training does not wait directly.


def _patch_node(module: ModuleType) -> None:
    wrap("torchdata", module, "BaseNode.__next__", _in_main_thread)


def _in_main_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    waited = _waited(original)

    @functools.wraps(original)
    def following(self: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return waited(self) if is_main else original(self)

    return following


def _patch_node_loader(module: ModuleType) -> None:
    wrap("torchdata", module, "LoaderIterator.__next__", _waited)
    wrap("torchdata", module, "LoaderIterator.has_next", _wrap_start)


def _wrap_start(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the making of an iterator with an early fetch of the first item.

    The iterator's first `next` returns the early item.
    """

    @functools.wraps(original)
    def started(self: Any) -> Any:
        if thread.is_waiting or not recorder.is_recording():
            return original(self)
        thread.is_waiting, span = True, _begin_start()
        try:
            return original(self)
        finally:
            thread.is_waiting = False
            if span is not None:
                span.end()

    return started


@quietly
def _begin_start() -> recorder.Span | None:
    return recorder.begin("loader start")


def _patch_spdl(module: ModuleType) -> None:
    wrap("spdl", module, "PipelineIterator.__next__", _waited)


def _patch_streamed(module: ModuleType) -> None:
    wrap("datasets", module, "IterableDataset.__iter__", _follow)
    wrap("datasets", module, "IterableDataset.iter", _follow)


def _patch_arrow(module: ModuleType) -> None:
    """Wrap batches only: for a row, marking the wait would take almost as long as the fetch."""
    wrap("datasets", module, "Dataset.iter", _follow)


def _patch_mosaic(module: ModuleType) -> None:
    wrap("streaming", module, "StreamingDataset.__iter__", _follow)


def _patch_litdata(module: ModuleType) -> None:
    wrap("litdata", module, "StreamingDataset.__iter__", _follow)


def _patch_webdataset(module: ModuleType) -> None:
    wrap("webdataset", module, "DataPipeline.__iter__", _follow_bare)


def _follow_bare(original: Callable[..., Any]) -> Callable[..., Any]:
    followed = _follow(original)

    @functools.wraps(original)
    def made(self: Any) -> Any:
        return original(self) if _reads_a_dataloader(self) else followed(self)

    return made


def _reads_a_dataloader(pipeline: Any) -> bool:
    """Return True if the pipeline reads a DataLoader, as WebLoader does.

    Torch's adapter knows more about such a pipeline.
    """
    stages = getattr(pipeline, "pipeline", None) or ()
    return any(
        base.__name__ == "DataLoader" for stage in stages[:1] for base in type(stage).__mro__
    )


def _patch_feed(module: ModuleType) -> None:
    wrap("penstock.feed", module, "_Pass.__next__", _waited)


def _patch_rank_feed(module: ModuleType) -> None:
    wrap("penstock.feed", module, "RankFeed.__iter__", _follow)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "penstock.feed.feed": _patch_feed,
    "penstock.feed.share": _patch_rank_feed,
    "torchdata.nodes.base_node": _patch_node,
    "torchdata.nodes.loader": _patch_node_loader,
    "spdl.pipeline._pipeline": _patch_spdl,
    "datasets.iterable_dataset": _patch_streamed,
    "datasets.arrow_dataset": _patch_arrow,
    "streaming.base.dataset": _patch_mosaic,
    "litdata.streaming.dataset": _patch_litdata,
    "webdataset.pipeline": _patch_webdataset,
}
