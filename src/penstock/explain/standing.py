"""The standstill of a running job, in words: where, and for how long.  Knows measures; judges no
wait.

Only observations count.  A job does not stand still while computing, however long, and not while
waiting for a working worker.
"""

from dataclasses import dataclass

from penstock.explain.measures import Doing, Measures, Standing
from penstock.recording.threads import in_words
from penstock.words import count, show

__all__ = ["STILL_S", "Still", "ended_blocked", "ended_in", "still_of"]

STILL_S = 10.0  # chosen: batches, and calls on sound storage, rarely take 10 s
# Chosen: a wait shorter than twice the longest earlier wait is usual for the job.
TIMES_LONGEST = 2.0
# A waiting loader checks the workers every five seconds, and a watchdog checks ten times a second:
# less than a hundredth of a CPU.  A fetching process uses more.
IDLE_CPU = 0.05
TOLD = 4

IN = {
    "data wait": "waits for data",
    "loader start": "starts a loader",
    "loader end": "ends a loader's workers",
    "checkpoint": "saves a checkpoint",
    "restore": "loads a checkpoint",
    "load state": "puts a checkpoint into its model",
    "barrier": "waits for other ranks at a barrier",
}
# Values of the column `what` of queries/standstills.sql.
BLOCKED_IN = {
    "other thread": "waits for another thread (a lock, a queue, a future)",
    "network": "waits for the network",
    "pipe": "waits at a pipe",
    "interpreter lock": "waits for the interpreter lock",
}


@dataclass(frozen=True, slots=True)
class Still:
    """A standstill of a job, or of some ranks of the job.

    is_suspended: a signal or a debugger stopped the processes.  on_storage: a process has been in a
    file call for most of the time, so storage is the known cause.
    """

    headline: str
    sentence: str
    is_suspended: bool
    on_storage: bool


def still_of(measures: Measures) -> Still | None:
    """Return the standstill of a job; None if no standstill is known."""
    running = [standing for standing in measures.hung if standing.is_running]
    stopped = [standing for standing in running if _is_stopped(measures, standing)]
    if stopped:
        who = "; ".join(f"{_main(standing)} is stopped" for standing in stopped[:TOLD])
        said = f"{who}, by a signal (SIGSTOP, SIGTSTP) or a debugger: `kill -CONT` lets it go on"
        return Still(_headline(measures, stopped, "SUSPENDED"), said, True, False)
    still = [standing for standing in running if _stands(measures, standing)]
    if not still:
        return None
    parts = [_told(measures, standing) for standing in still[:TOLD]]
    if len(still) > TOLD:
        parts.append(f"{count(len(still) - TOLD, 'more main process')} too")
    on_storage = any(_is_on_storage(measures, standing) for standing in still)
    return Still(_headline(measures, still, "STILL"), "; ".join(parts), False, on_storage)


def ended_in(measures: Measures) -> list[str]:
    """Return a sentence for each main process killed or failed in a long call or wait."""
    return [
        f"at its end {_main(standing)} {_what(standing)} for {show(standing.open_s, 's')}"
        for standing in measures.hung
        if not standing.is_running and _is_long(standing)
    ][:TOLD]


def ended_blocked(measures: Measures) -> str:
    """Return a sentence about a main process that ended in a long blocking call, or "".

    The call is not counted as data wait.
    """
    if any(
        standing.is_blocked and not standing.is_running and _is_long(standing)
        for standing in measures.hung
    ):
        return ended_in(measures)[0]
    return ""


def _is_long(standing: Standing) -> bool:
    open_s = standing.open_s or 0.0
    return open_s >= STILL_S and open_s > TIMES_LONGEST * standing.longest_s


def _headline(measures: Measures, still: list[Standing], how: str) -> str:
    verb = "IS SUSPENDED" if how == "SUSPENDED" else "STANDS STILL"
    others = [
        standing for standing in measures.hung if standing.is_running and standing not in still
    ]
    # Ranks that exchange gradients with a stopped rank take no step either.
    if any((standing.quiet_s or 0.0) < STILL_S for standing in others):
        named = ", ".join(str(standing.rank) for standing in still if standing.rank is not None)
        return f"RANK {named} {verb}" if named else f"A MAIN PROCESS {verb}"
    return f"THE JOB {verb}"


def _family(measures: Measures, standing: Standing) -> list[Doing]:
    """Return the threads of a main process and of the main process's workers."""
    return [row for row in measures.doing if standing.process in (row.process, row.main)]


def _is_stopped(measures: Measures, standing: Standing) -> bool:
    own = [row for row in measures.doing if row.process == standing.process]
    return bool(own) and all(row.state in "Tt" for row in own)


def _stands(measures: Measures, standing: Standing) -> bool:
    # The thread that could end the block is not known; any process of the job may have the thread.
    family = list(measures.doing) if standing.is_blocked else _family(measures, standing)
    return (
        standing.doing is not None
        and _is_long(standing)
        and not standing.calls
        and bool(family)
        and not any(row.state == "R" for row in family)
        and sum(row.cpu for row in family) < IDLE_CPU
    )


def _is_on_storage(measures: Measures, standing: Standing) -> bool:
    """Return True if a file call has been under way for most of the time."""
    if not standing.is_blocked and standing.doing not in IN:  # doing is a file call
        return True
    pids = {row.pid for row in _family(measures, standing)}
    return any(
        call.pid in pids and call.s >= 0.5 * (standing.open_s or 0.0) for call in measures.in_flight
    )


def _main(standing: Standing) -> str:
    rank = "" if standing.rank is None else f" of rank {standing.rank}"
    return f"the main process{rank} (pid {standing.pid})"


def _told(measures: Measures, standing: Standing) -> str:
    since = f"for {show(standing.open_s, 's')}"
    quiet = (
        ""
        if standing.quiet_s is None
        else f", its latest step ended {show(standing.quiet_s, 's')} ago"
    )
    parts = [f"{_main(standing)} {_what(standing)} {since}{quiet}"]
    if standing.doing in IN or standing.is_blocked:
        parts += [_asleep(row) for row in _owing(measures, standing)[:TOLD]]
    return ", ".join(parts)


def _what(standing: Standing) -> str:
    if standing.is_blocked:
        return BLOCKED_IN[standing.doing or ""]
    batch = (
        f" (batch {standing.number})"
        if standing.doing == "data wait" and standing.number is not None
        else ""
    )
    return (
        IN.get(standing.doing or "", f"is in {standing.doing} {standing.path or 'of a file'}")
        + batch
    )


def _owing(measures: Measures, standing: Standing) -> list[Doing]:
    """Return the workers' first threads; without workers, the main process's training thread."""
    family = _family(measures, standing)
    workers = [row for row in family if row.role == "worker" and row.is_first]
    return workers or [row for row in family if row.takes_steps]


def _asleep(row: Doing) -> str:
    who = f"worker {row.worker} (pid {row.pid})" if row.role == "worker" else "its thread"
    since = "" if row.still_s is None else f" for {show(row.still_s, 's')}"
    return f"{who} {in_words(row.state, row.call, row.path)}{since}"
