"""Penstock in Python: record a training, open its run, read its report.

    import penstock

    with penstock.record("runs/tuesday"):        # not needed under `penstock run`
        for batch in loader:
            with penstock.step():
                train(batch)
        with penstock.span("validation"):
            validate()

    report = penstock.open_run("runs/tuesday").report()
    report.verdict

`import penstock` loads no native code, no numpy and no framework: everything except record, step,
span and the errors is imported at the first use.  docs/python.md describes each name.
"""

from penstock.errors import (
    FeedError,
    FeedRefused,
    ForeignError,
    LogError,
    MissingDependency,
    PenstockError,
    QueryError,
    RecorderError,
    RunError,
    SaveError,
    StartError,
    TierError,
    TierFull,
    TierGone,
)
from penstock.recording import recorder as _recorder
from penstock.recording.recorder import record, span, step

TYPE_CHECKING = False  # typing's own takes ten times as long to import as all else here
if TYPE_CHECKING:
    from penstock import adapters, feed, save, stage
    from penstock.api import OpenRun, Report, compare_runs, open_run

    __version__: str
    """The version of the installed package."""

__all__ = [
    "FeedError",
    "FeedRefused",
    "ForeignError",
    "LogError",
    "MissingDependency",
    "OpenRun",
    "PenstockError",
    "QueryError",
    "RecorderError",
    "Report",
    "RunError",
    "SaveError",
    "StartError",
    "TierError",
    "TierFull",
    "TierGone",
    "__version__",
    "adapters",
    "compare_runs",
    "feed",
    "open_run",
    "record",
    "save",
    "span",
    "stage",
    "step",
]

_PACKAGES = ("adapters", "feed", "save", "stage")
_OF_API = ("OpenRun", "Report", "compare_runs", "open_run")


if not TYPE_CHECKING:  # with __getattr__, a type checker takes any name for a name of penstock

    def __getattr__(name: str) -> object:
        """Import a name of the face, at its first use."""
        if name == "__version__":
            from importlib.metadata import version

            return version("penstock")
        if name not in (*_PACKAGES, *_OF_API):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # `from penstock import feed` would call __getattr__ again

        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        value = getattr(importlib.import_module(f"{__name__}.api"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)


def _load_adapters() -> None:
    from penstock import adapters  # not above: a program without a window needs none

    adapters.load()


def _watch_frameworks() -> None:
    from penstock import adapters

    adapters.install()


_recorder.on_start(_load_adapters, _watch_frameworks)
