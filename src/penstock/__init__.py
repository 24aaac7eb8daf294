"""What runs inside training: record, step, span and the errors.  All else has its own module.

    import penstock

    with penstock.record("runs/tuesday"):        # not needed under `penstock run`
        for batch in loader:
            with penstock.step():
                train(batch)
        with penstock.span("validation"):
            validate()

`penstock.feed`, `penstock.save` and `penstock.adapters` are imported when they are first asked for.
Importing this loads no native code, no numpy and no framework.
"""

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
from penstock.recording import recorder as _recorder
from penstock.recording.recorder import record, span, step

TYPE_CHECKING = False  # typing's own takes ten times as long to import as all else here
if TYPE_CHECKING:
    from types import ModuleType

    from penstock import adapters, feed, save  # noqa: F401 - see __getattr__

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


def __getattr__(name: str) -> "ModuleType":
    """The packages with an interface for Python, as `import penstock` alone would not have them."""
    if name not in ("adapters", "feed", "save"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # `from penstock import feed` would ask this function again

    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), "adapters", "feed", "save"})


def _load_adapters() -> None:
    from penstock import adapters  # noqa: F401 - not above: a program without a window needs none


def _watch_frameworks() -> None:
    from penstock import adapters

    adapters.install()


_recorder.on_start(_load_adapters, _watch_frameworks)
