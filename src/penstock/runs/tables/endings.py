"""How the recorded processes ended, joined from what other processes saw and did.

Parents note the status of a child, the launcher looks each second, and each process notes the
signals that it sends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from penstock.recording.endings import Ended, Sent
from penstock.runs.tables.sources import LogSource, host_of

__all__ = ["seen_ends"]

Seen = tuple[str, str, Ended]  # boot, host, and an observed end


def seen_ends(
    sources: Sequence[LogSource], seen: Iterable[Seen], sent: Sequence[tuple[LogSource, Sent]]
) -> dict[int, Ended]:
    """Return by process the observed end.  sent: the signals, with the process that sent each."""
    images: dict[tuple[str, str, int], list[LogSource]] = {}
    for source in sources:
        images.setdefault((*host_of(source.log), source.log.header.pid), []).append(source)
    endings: dict[int, Ended] = {}
    for boot, host, ended in seen:
        begun = [
            source
            for source in images.get((boot, host, ended.pid), ())
            if source.log.header.start_ns <= ended.at_ns
        ]
        if begun:
            last = max(begun, key=lambda source: source.log.header.start_ns)
            endings[last.process] = ended.joined(endings.get(last.process))
    of_process = {source.process: source for source in sources}
    return {
        process: _with_sender(of_process, of_process[process], ended, sent)
        for process, ended in endings.items()
    }


def _with_sender(
    sources: dict[int, LogSource],
    of: LogSource,
    ended: Ended,
    sent: Sequence[tuple[LogSource, Sent]],
) -> Ended:
    """Add the process that had sent the signal which ended the process."""
    if ended.is_sent or ended.status is None or ended.status >= 0:
        return ended
    ancestors = _ancestors(sources, of)
    for sender, signal in sent:
        if (
            signal.number == -ended.status
            and of.log.header.start_ns <= signal.at_ns <= ended.at_ns
            and host_of(sender.log) == host_of(of.log)
            and sender.log.header.pid != of.log.header.pid
            and _is_target(sources, of, ancestors, sender, signal.target)
        ):
            if sender.log.header.pid == of.log.header.ppid:
                return replace(ended, is_sent=True)
            return replace(ended, sender=sender.log.header.pid)
    return ended


def _is_target(
    sources: dict[int, LogSource],
    of: LogSource,
    ancestors: Sequence[int],
    sender: LogSource,
    target: int,
) -> bool:
    """Return True if the signal went to the process.

    The group of a process is not recorded.  Processes below the group's leader count as its group,
    and below the sender, if the leader is not recorded.
    """
    if target > 0 or target == -1:
        return target in (-1, of.log.header.pid)
    host = host_of(of.log)
    is_led = any(
        source.log.header.pid == -target and host_of(source.log) == host
        for source in sources.values()
    )
    return (-target if is_led else sender.log.header.pid) in ancestors


def _ancestors(sources: dict[int, LogSource], of: LogSource) -> list[int]:
    """Return the pids of the process and of its recorded ancestors."""
    pids = [of.log.header.pid, of.log.header.ppid]
    seen = {of.process}
    while of.parent is not None and of.parent not in seen:
        seen.add(of.parent)
        of = sources[of.parent]
        pids.append(of.log.header.pid)
    return pids
