"""The errors Penstock raises on purpose.  Knows no file, no library, no screen.

    PenstockError
    ├── RecorderError        the recording in this process: start, stop, the native library
    ├── LogError             bytes of a log that cannot be read
    ├── RunError             a run folder: missing, empty, not writable, of another job
    │   └── StartError       the program of a run cannot be started; has .status as a shell gives it
    ├── ForeignError         a file of another tool: of an unexpected kind, or of another run
    ├── QueryError           a question to the tables that cannot be answered
    ├── FeedError            a data set: missing, damaged, of an unknown kind, changed since
    │   └── FeedRefused      a perhaps whole data set, not read here or not without a further option
    ├── TierError            a place for bytes: missing, full, read-only, nothing in it to read
    │   ├── TierGone         a tier named by the user is not there: gone, not mounted
    │   └── TierFull         no room; has .path and .wanted_bytes
    ├── SaveError            a checkpoint: not whole, not found, not to be written or removed
    └── MissingDependency    an optional package is needed; also an ImportError

Each message has the fault, the place and the cure.
"""

from abc import ABCMeta

__all__ = [
    "FeedError",
    "FeedRefused",
    "ForeignError",
    "LogError",
    "MissingDependency",
    "PenstockError",
    "QueryError",
    "RecorderError",
    "RunError",
    "SaveError",
    "StartError",
    "TierError",
    "TierFull",
    "TierGone",
]


class _OwnNames(ABCMeta):
    """Lists an error's own names only: help(penstock) then shows no method of BaseException.

    An ABCMeta, so that a user's error may also be an abstract class.
    """

    def __dir__(cls) -> list[str]:
        others = ("__weakref__", "__abstractmethods__", "_abc_impl")
        return [name for name in vars(cls) if name not in others]


class PenstockError(Exception, metaclass=_OwnNames):
    """Every error that Penstock raises on purpose."""


class RecorderError(PenstockError):
    """The recording in the process cannot do the requested work."""


class LogError(PenstockError):
    """The bytes of a log cannot be read."""


class RunError(PenstockError):
    """A run folder cannot be made or read, or a run gave no result."""


class StartError(RunError):
    """The program of a run cannot be started.  status: 127 not found, 126 not executable."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ForeignError(PenstockError):
    """A file of another tool cannot be read, or does not belong to the run."""


class QueryError(PenstockError):
    """A question to the tables of a run cannot be answered."""


class FeedError(PenstockError):
    """A data set cannot be read, or has changed."""


class FeedRefused(FeedError):  # noqa: N818 - a refusal, as the data set may be whole
    """A data set, perhaps whole, is not read here, or not without a further option."""


class TierError(PenstockError):
    """A place where bytes lie, or should, cannot be used."""


class TierGone(TierError):  # noqa: N818 - the usual word
    """A tier's folder is not there, or is on another file system."""


class TierFull(TierError):  # noqa: N818 - the usual word
    """A place for bytes has no room.  path: the file being written; wanted_bytes: how much more."""

    def __init__(self, message: str, path: str, wanted_bytes: int) -> None:
        super().__init__(message)
        self.path = path
        self.wanted_bytes = wanted_bytes


class SaveError(PenstockError):
    """A checkpoint is not whole, not to be found, or may not be written or removed."""


class MissingDependency(PenstockError, ImportError):  # noqa: N818 - the name says enough
    """An optional package is needed and not installed; the message names the extra."""
