"""Record the files that a drain could not copy, with the time of the next attempt and the reason.

The module knows files, errors and times.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, TierError, TierFull
from penstock.save.burst.file import BurstFile
from penstock.save.drain.working import LEAST_DELAY_S, MOST_DELAY_S, sentence

__all__ = ["ABSENT", "AbsentError", "Attempts", "UnfinishedError", "said_unclaimed"]

ABSENT = "is not there: is its file system mounted?"


class AbsentError(TierError):
    """The folder of a file is absent: the file system was unmounted or does not answer."""


class UnfinishedError(TierError):
    """A file may still be growing: the next look tries again."""


class Attempts:
    """The failed attempts of a drain, by path.

    say: records facts in the drain's status; reason: returns the reason in the status.
    """

    def __init__(
        self, clock: Callable[[], float], say: Callable[..., Any], reason: Callable[[], str]
    ) -> None:
        self._clock, self._say, self._reason = clock, say, reason
        self._again: dict[str, tuple[float, float, str]] = {}  # not before, delay, why

    def __bool__(self) -> bool:
        return bool(self._again)

    def clear(self) -> None:
        """Try each file at once."""
        self._again.clear()

    def forget(self, home_at: str) -> None:
        """Record that the file of a path is home."""
        self._again.pop(home_at, None)

    def is_time(self, file: BurstFile, failed: dict[str, str]) -> bool:
        """Return True if the next attempt is due.  failed: receives the reason of the last failure
        if the delay has not passed."""
        name = file.home_at
        if name not in self._again:
            return name not in failed
        not_before_s, _, why = self._again[name]
        if self._clock() < not_before_s:
            failed[name] = why
        return name not in failed

    @contextmanager
    def trying(self, file: BurstFile, failed: dict[str, str]) -> Iterator[None]:
        name = file.home.as_posix()
        try:
            yield
            self._again.pop(name, None)
            self._say(error="")
        except UnfinishedError as error:
            failed[name] = str(error)
        except (PenstockError, OSError) as error:
            failed[name] = why = str(error)
            delay_s = self._again.get(name, (-1.0, LEAST_DELAY_S, ""))[1]
            again_s = self._clock() + delay_s
            self._again[name] = (again_s, min(MOST_DELAY_S, 2 * delay_s), why)
            reason = _reason_of(error) or self._reason()
            self._say(error=sentence(name, why), reason=reason)


def _reason_of(error: Exception) -> str:
    """Return the value for Status.reason."""
    number = error.errno if isinstance(error, OSError) else 0
    if isinstance(error, TierFull) or number in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    is_absent = isinstance(error, AbsentError) or number in (errno.ENOTCONN, errno.ESTALE)
    return "absent" if is_absent else ""


def said_unclaimed(files: Sequence[BurstFile]) -> list[str]:
    """Return a sentence for each file without a path that leads there."""
    stays = "no path leads there any more; it stays, for you to move or remove"
    gone = "its folder is not there: mount its file system, and drain again; it stays"
    return [
        f"{file.home}: lies in {file.data}, and {stays if file.home.parent.is_dir() else gone}"
        for file in files
    ]
