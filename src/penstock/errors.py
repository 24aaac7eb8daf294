"""The errors Penstock raises on purpose.  Knows no file, no library, no screen.

    PenstockError
    ├── RecorderError        the recording in this process: start, stop, the native library
    ├── LogError             bytes of a log that cannot be read
    ├── RunError             a run folder: missing, empty, not writable, of another job
    │   └── StartError       the program of a run cannot be started; has .status as a shell gives it
    ├── ForeignError         a file of another tool: not what it should be, or of another run
    ├── QueryError           a question to the tables that cannot be answered
    ├── TierError            a place for bytes: missing, full, read-only, nothing in it to read
    └── MissingDependency    an optional package is needed; also an ImportError

Each message says what, where, and what now.
"""

__all__ = [
    "ForeignError",
    "LogError",
    "MissingDependency",
    "PenstockError",
    "QueryError",
    "RecorderError",
    "RunError",
    "StartError",
    "TierError",
]


class PenstockError(Exception):
    """Whatever Penstock raises on purpose."""


class RecorderError(PenstockError):
    """The recording in this process cannot do what was asked."""


class LogError(PenstockError):
    """The bytes of a log cannot be read."""


class RunError(PenstockError):
    """A run folder cannot be made or read."""


class StartError(RunError):
    """The program of a run cannot be started.  status: 127 not found, 126 not executable."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ForeignError(PenstockError):
    """A file of another tool cannot be read, or does not belong to the run."""


class QueryError(PenstockError):
    """A question to the tables of a run cannot be answered."""


class TierError(PenstockError):
    """A place where bytes lie, or should, cannot be used."""


class MissingDependency(PenstockError, ImportError):  # noqa: N818 - what is missing is the name
    """An optional package is needed and not installed; the message names the extra."""
