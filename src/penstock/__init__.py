"""What runs inside training: record, step, span and the errors.  All else has its own module.

    import penstock

    with penstock.record("runs/tuesday"):        # not needed under `penstock run`
        for batch in loader:
            with penstock.step():
                train(batch)
        with penstock.span("validation"):
            validate()

Importing this loads no native code, no numpy and no framework.
"""

from penstock import recorder as _recorder
from penstock.errors import (
    LogError,
    MissingDependency,
    PenstockError,
    QueryError,
    RecorderError,
    RunError,
    StartError,
    TierError,
)
from penstock.recorder import record, span, step

__all__ = [
    "LogError",
    "MissingDependency",
    "PenstockError",
    "QueryError",
    "RecorderError",
    "RunError",
    "StartError",
    "TierError",
    "record",
    "span",
    "step",
]


def _load_adapters() -> None:
    from penstock import adapters  # noqa: F401 - not above: a program without a window needs none


def _watch_frameworks() -> None:
    from penstock import adapters

    adapters.install()


_recorder.on_start(_load_adapters, _watch_frameworks)
