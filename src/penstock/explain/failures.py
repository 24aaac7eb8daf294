"""Failed calls on files, and saves without a checkpoint, from measures to words.  Judges no wait;
penstock.explain.findings makes findings of the result."""

import errno
import os
from collections.abc import Sequence

from penstock.explain.measures import Failure, Measures, RecordedCheckpoint
from penstock.words import count, show

__all__ = ["bad_saves", "calls_that_failed", "cures", "error_name", "saves_that_failed", "usual"]

TOLD = 4  # kinds of failed calls, and saves, with a separate sentence

# Advice by the name of the error.
CURES = {
    "ENOSPC": "make room there, or write to another folder: the file system is full",
    "EDQUOT": "make room there, or ask for more quota: yours is used up",
    "EFBIG": "the file may not grow so far: `ulimit -f`, or a limit of the file system",
    "EIO": "the device or the server lost data: its log (`dmesg`) says more; check the files",
    "ESTALE": "the file was replaced on the server while it was open: write anew, then rename",
    "ETIMEDOUT": "the server did not answer in time: look at it, and at the mount's `timeo`",
    "ENOTCONN": "the file system has lost its server, or its program has ended: mount it anew",
    "ESHUTDOWN": "the server has evicted this client: its log says why (`dmesg`)",
    "EMFILE": "too many files are open at once: close them, or raise `ulimit -n`",
    "ENFILE": "the host has too many files open at once: close them, or raise `fs.file-max`",
    "EACCES": "the job may not do that there: look at owner and mode",
    "EROFS": "the file system is read-only, as the kernel makes it after an error of its device",
    "ENOMEM": "memory, or the limit of mappings (`vm.max_map_count`), is used up",
    "EUCLEAN": "the file system is damaged: check it",
}


def error_name(number: int) -> str:
    """Return ENOSPC for 28; `errno 999` for a number without a name."""
    return errno.errorcode.get(number, f"errno {number}")


def calls_that_failed(failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return evidence, a sentence per failure.

    A sentence has the name of the error, calls, path, first and last time, and process.
    """
    lines = [_failure(failure) for failure in failures[:TOLD]]
    rest = failures[TOLD:]
    if rest:
        calls = count(sum(failure.calls for failure in rest), "call")
        lines.append(f"{calls} more, on {count(len({call.path for call in rest}), 'other file')}")
    return tuple(lines)


def _failure(failure: Failure) -> str:
    name = error_name(failure.errno)
    meaning = os.strerror(failure.errno) if failure.errno in errno.errorcode else ""
    times = "" if failure.calls == 1 else f"{failure.calls:,} times, "
    when = f"at {show(failure.first_s, 's')}"
    if failure.calls > 1:
        when = f"first at {show(failure.first_s, 's')}, last at {show(failure.last_s, 's')}"
    by = "" if failure.processes == 1 else f" of {count(failure.processes, 'process')}"
    path = failure.path or "of a file that is not known"
    return f"{name} ({meaning.lower()}): {failure.op} {path}, {times}{when}{by}"


def usual(measures: Measures) -> str:
    """Return the number of failed calls that any program has, in words."""
    rows = measures.expected_failures
    if not rows:
        return "no call failed"
    named = ", ".join(f"{error_name(row.errno)} {row.calls:,}" for row in rows[:3])
    return f"calls that fail in any program: {named}"


def cures(numbers: Sequence[int]) -> tuple[str, ...]:
    """Return the advice for each error, once."""
    names = dict.fromkeys(error_name(number) for number in numbers)
    return tuple(CURES[name] for name in names if name in CURES)


def bad_saves(measures: Measures) -> list[RecordedCheckpoint]:
    """Return the saves without a checkpoint: ended in an exception, or cut off with the process."""
    return [save for save in measures.checkpoints if save.outcome in ("failed", "cut off")]


def saves_that_failed(measures: Measures) -> tuple[str, ...]:
    """Return evidence, a sentence per save; empty: all ended saves count."""
    bad, late = bad_saves(measures), measures.late_failures
    if not bad and not late:
        return ()
    n = len(bad) + len(late)
    are = "is no checkpoint" if n == 1 else "are no checkpoints"
    lines = [f"{n} of {count(len(measures.checkpoints), 'save')} {are}"]
    lines += [_save(save) for save in bad[:TOLD]]
    for late_save in late[: max(0, TOLD - len(bad))]:
        why = f" with {error_name(late_save.errno)}" if late_save.errno else ""
        lines.append(
            f"a save that had returned failed{why}; "
            f"the job learned it at {show(late_save.start_s, 's')}"
        )
    return tuple(lines)


def _save(save: RecordedCheckpoint) -> str:
    how = {"failed": "failed", "cut off": "was cut off by the end of its process"}
    why = f" with {error_name(save.errno)}" if save.errno else ""
    path = f": {save.path}" if save.path else ""
    after = f"after {show(save.duration_s, 's')}"
    size = f" and {show(save.written_bytes, 'B')}" if save.written_bytes else ""
    what = how[save.outcome or "failed"]
    return f"the save at {show(save.start_s, 's')} {what}{why} {after}{size}{path}"
