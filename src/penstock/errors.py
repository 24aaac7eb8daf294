"""The errors Penstock raises on purpose.  Knows no file, no library, no screen.

    PenstockError
    ├── RecorderError        the recording in this process: start, stop, the native library
    ├── LogError             bytes of a log that cannot be read
    ├── RunError             a run folder: missing, empty, not writable, of another job
    │   └── StartError       the program of a run cannot be started; has .status as a shell gives it
    ├── ForeignError         a file of another tool: not what it should be, or of another run
    ├── QueryError           a question to the tables that cannot be answered
    ├── FeedError            a data set: missing, damaged, of an unknown kind, changed since
    │   └── FeedRefused      one that may be whole, and is not read here or not without a word more
    ├── TierError            a place for bytes: missing, full, read-only, nothing in it to read
    │   ├── TierGone         a tier that the user named is not there: gone, not mounted
    │   └── TierFull         no room; has .path and .wanted_bytes
    ├── SaveError            a checkpoint: not whole, not found, not to be written or removed
    └── MissingDependency    an optional package is needed; also an ImportError

Each message says what, where, and what now.
"""

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


class _OwnNames(type):
    """Lists an error's own names only: help(penstock) then shows no method of BaseException."""

    def __dir__(cls) -> list[str]:
        return [name for name in vars(cls) if name != "__weakref__"]


class PenstockError(Exception, metaclass=_OwnNames):
    """Whatever Penstock raises on purpose."""


class RecorderError(PenstockError):
    """The recording in this process cannot do what was asked."""


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
    """A data set cannot be read, or is not what it was."""


class FeedRefused(FeedError):  # noqa: N818 - it is nobody's error: nothing is wrong with it
    """A data set that may be whole, and is not read here, or not before something is said."""


class TierError(PenstockError):
    """A place where bytes lie, or should, cannot be used."""


class TierGone(TierError):  # noqa: N818 - as one says it
    """A tier's folder is not there, or is that of another file system."""


class TierFull(TierError):  # noqa: N818 - as one says it
    """A place for bytes has no room.  path: what was being written; wanted_bytes: how much more."""

    def __init__(self, message: str, path: str, wanted_bytes: int) -> None:
        super().__init__(message)
        self.path = path
        self.wanted_bytes = wanted_bytes


class SaveError(PenstockError):
    """A checkpoint is not whole, not to be found, or may not be written or removed."""


class MissingDependency(PenstockError, ImportError):  # noqa: N818 - what is missing is the name
    """An optional package is needed and not installed; the message names the extra."""
