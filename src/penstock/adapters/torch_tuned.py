"""Set options of torch's DataLoader from outside: `penstock run --tuned`.

Writes a note of the options used by each loader, and why a knob was not applied.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from penstock.recording import recorder

__all__ = ["wrap_options"]

OPTIONS = {
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "persistent": "persistent_workers",
    "pin": "pin_memory",
}
PREFETCH = 2  # torch's default
NEED_WORKERS = ("prefetch", "persistent")


def wrap_options(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a wrapper of DataLoader.__init__.  text: the knobs in JSON."""
    try:
        knobs = {knob: value for knob, value in json.loads(text).items() if knob in OPTIONS}
    except (ValueError, AttributeError):
        recorder.note("tuned", json.dumps({"refused": "the knobs could not be read"}))
        knobs = {}

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:  # an error of the program; the next call raises the error
                original(self, *args, **kwargs)
                return
            refused = _apply(bound.arguments, knobs)
            original(*bound.args, **bound.kwargs)
            used = {knob: getattr(self, name, None) for knob, name in OPTIONS.items()}
            used["prefetch"] = used["prefetch"] or PREFETCH
            recorder.note("tuned", json.dumps({**used, "refused": refused}, default=str))

        return made

    return wrapper


def _apply(arguments: dict[str, Any], knobs: dict[str, Any]) -> str:
    """Change the arguments of a DataLoader; return why a knob is not applied, or ""."""
    from torch.utils.data import IterableDataset

    refused = ""
    before = arguments.get("num_workers", 0)
    workers = knobs.get("workers", before)
    if workers != before and isinstance(arguments.get("dataset"), IterableDataset):
        # The program decides how workers share the items: another number of workers may return some
        # items twice.
        workers, refused = before, "workers of an IterableDataset are the program's own"
    if not workers and before:
        for option in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            arguments.pop(option, None)
        arguments.pop("timeout", None)
    arguments["num_workers"] = workers
    for knob, value in knobs.items():
        if knob == "workers" or (knob in NEED_WORKERS and not workers):
            continue
        arguments[OPTIONS[knob]] = value
    return refused
