"""Incidents: the job failed, or stands still.  Knows no medium and no rule.

Incidents are reported before any verdict on waiting, because incidents matter more.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.explain.failures import error_name
from penstock.explain.measures import Death, Ending, Measures
from penstock.explain.standing import ended_in, still_of
from penstock.recording.endings import signal_name
from penstock.words import count, show

__all__ = ["Incident", "incidents_of", "who"]

# Signals that end a program unintentionally, no matter who sends the signal.
CRASHES = (
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
)
SHELL_ADDS = 128  # added to a signal's number by a shell or a launcher
DEATHS_TOLD = 3


@dataclass(frozen=True, slots=True)
class Incident:
    """A sentence before the verdict: headline, colon, sentence."""

    kind: Literal["failed", "killed", "still"]
    headline: str
    sentence: str


def incidents_of(measures: Measures) -> tuple[Incident, ...]:
    """Return all incidents of a run, the gravest first."""
    return (*_failed(measures), *_still(measures), *_killed(measures))


def _still(measures: Measures) -> tuple[Incident, ...]:
    still = still_of(measures)
    if still is not None:
        return (Incident("still", still.headline, still.sentence),)
    if not measures.still:
        return ()
    said = "; ".join(measures.still)
    return (Incident("still", "IT STOOD STILL while it was attached to", said),)


def _failed(measures: Measures) -> tuple[Incident, ...]:
    """Return the incident of a job with an exit status other than 0."""
    bad = [ending for ending in measures.endings if ending.status]
    if not bad:
        return ()
    ends = _deaths(measures)
    ends = ends or ["no recorded process was killed: its own output says why"]
    why = "; ".join([*ends, *_last_call(measures), *ended_in(measures)])
    return (Incident("failed", _headline(measures.endings, bad), why),)


def _last_call(measures: Measures) -> list[str]:
    """Return the last failed call on data before the first process ended: a possible cause."""
    failures_of = {failure.process: failure for failure in measures.last_failures}
    ended = [
        failures_of[death.process] for death in measures.deaths if death.process in failures_of
    ]
    return [
        f"its latest call that failed: {failure.op} {failure.path} ({error_name(failure.errno)}), "
        f"{show(failure.before_s, 's')} before that"
        for failure in ended[:1]
    ]


def _headline(every: Sequence[Ending], bad: Sequence[Ending]) -> str:
    first = bad[0]
    how = _status(first.status)
    if sum(ending.programs for ending in every) == 1:
        return f"THE JOB {how}"
    named = f" (rank {first.ranks})" if first.ranks and first.programs == 1 else ""
    n, of = sum(ending.programs for ending in bad), sum(ending.programs for ending in every)
    also = f", {n - first.programs} otherwise" if n > first.programs else ""
    return f"{first.programs} OF {count(of, 'RANK').upper()} {how}{named}{also}"


def _status(status: int) -> str:
    if status < 0:
        return f"WAS ENDED BY {signal_name(-status)}"
    number = status - SHELL_ADDS
    meant = f" ({signal_name(number)})" if 0 < number < 32 else ""
    return f"ENDED WITH STATUS {status}{meant}"


def _killed(measures: Measures) -> tuple[Incident, ...]:
    """Return the incident of killed processes in a job that succeeded or still runs."""
    ends = _deaths(measures)
    if not ends or any(ending.status for ending in measures.endings):
        return ()
    n = len(_bad(measures))
    return (Incident("killed", f"{count(n, 'process').upper()} FAILED", "; ".join(ends)),)


def _bad(measures: Measures) -> list[Death]:
    """Return the unintended deaths with a known end.

    The end of other processes is unknown, or the parent process intended the end.
    """
    return [
        death
        for death in measures.deaths
        if death.status is not None
        and not death.is_sent
        and (death.role != "other" or death.is_rank or -death.status in CRASHES)
        and not (death.is_program and death.status > 0)
    ]


def _deaths(measures: Measures) -> list[str]:
    bad = _bad(measures)
    lines = [_told(death, is_first=not n) for n, death in enumerate(bad[:DEATHS_TOLD])]
    more = len(bad) - len(lines)
    return [*lines, *([f"{count(more, 'more process')} after that"] if more else [])]


def _told(death: Death, is_first: bool) -> str:
    status = death.status or 0
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    when = f"{show(death.end_s, 's')} after the run began"
    about = "" if death.is_seen or status >= 0 else "at the earliest "
    return f"{who(death)} {how} {about}{when}{_memory(death) if is_first and status < 0 else ''}"


def _memory(death: Death) -> str:
    """Return the memory of a process, and of the host, when last seen."""
    lines = []
    if death.rss_bytes:  # 0: seen while ending
        lines.append(f"it had {show(death.rss_bytes, 'B')} in memory")
    elif death.peak_bytes:
        lines.append(f"it had at most {show(death.peak_bytes, 'B')} in memory")
    if death.available_bytes is not None:
        lines.append(f"{show(death.available_bytes, 'B')} of the host's memory was available")
    if death.shm_used_bytes is not None and death.shm_bytes:
        used, size = show(death.shm_used_bytes, "B"), show(death.shm_bytes, "B")
        lines.append(f"{used} of {size} of /dev/shm was in use")
    if death.oom_kills:
        n = count(death.oom_kills, "process")
        lines.append(f"the kernel killed {n} for want of memory in that second")
    return f" ({', '.join(lines)})" if lines else ""


def who(process: Death) -> str:
    """Return a process in a user's words: worker 1 (pid 4711)."""
    role = {"main": "the main process", "worker": "a worker"}.get(process.role, "a process")
    if process.worker is not None:
        role = f"worker {process.worker}"
    rank = "" if process.rank is None else f" of rank {process.rank}"
    pid = "" if process.pid is None else f" (pid {process.pid})"
    return f"{role}{rank}{pid}"
