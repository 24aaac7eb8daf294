"""The missing or incomplete measures of a run, with the reason."""

from collections.abc import Iterator

from penstock.explain.measures import InFlight, Measures
from penstock.explain.report.shape import Gap
from penstock.words import count, show

__all__ = ["gaps_of", "paused_s"]


def _imported_gap(why: str | None, has_events: bool) -> tuple[Gap, ...]:
    """Return the reason why an imported run lacks single calls."""
    return (
        (Gap("single calls", "incomplete" if has_events else "not measured", why),) if why else ()
    )


def _of_network(measures: Measures) -> Iterator[Gap]:
    """Yield the missing measures of the network, if the job waited for the network."""
    network_s = measures.wait_s("network")
    with_requests = {row.endpoint for row in measures.endpoint_requests}
    without = [name for name in measures.remote_endpoints if name not in with_requests]
    if network_s and (without or not measures.remote_endpoints):
        names = ", ".join(without[:3]) + f", … ({len(without):,})" * (len(without) > 3)
        to = f" to {names}" if without else ""
        why = "no adapter reads the requests of this client: only the connections are recorded"
        waited = f"{show(network_s, 's')} of the data wait on the network"
        yield Gap(f"network requests{to}", "not measured", f"{waited}; {why}")
    summed = sum(row.summed for row in measures.endpoints)
    if summed:
        why = "past the first 10,000 of a process: in sums by endpoint"
        yield Gap(count(summed, "connection"), "incomplete", why)
    unseen = sum(row.unseen_bytes or 0 for row in measures.endpoints)
    if unseen > 0.01 * sum(row.received_bytes for row in measures.endpoints):
        why = "received, by the kernel, beside the recorded calls: io_uring or direct system calls"
        yield Gap(f"{show(unseen, 'B')} of connections", "incomplete", why)


def gaps_of(measures: Measures) -> tuple[Gap, ...]:
    """Return the gaps of the run, then the gaps of every run of the present version."""
    record = measures.recording
    incomplete: list[tuple[int, str, str]] = [
        (record.folded, "single call", "past the trace budget: in counters only"),
        (record.nameless_spans, "span", "whose name was cut off: in no data wait, no checkpoint"),
        (record.lost, "call", "of which only the number is left"),
        (record.torn, "log", "cut short"),
        (record.damaged_units, "part of logs", "damaged"),
        (record.failed, "recorder", "that ended before its process"),
        (record.running, "process", "not at its end yet"),
        (
            record.later_mains,
            "main process",
            "that began when another one had ended: several jobs in one folder are reported as one",
        ),
        (record.killed_seen, "process", "killed: its end is known to a second"),
        (
            record.killed - record.killed_seen,
            "process",
            "killed: seen until its last event; when it was killed is not known",
        ),
        (record.unknown_ends, "process", "whose end is not known here: seen until its last event"),
        (record.in_flight, "file call", "that had not returned when the log ended"),
    ]
    missing: list[tuple[int, str, str]] = [
        (record.unseen_programs, "program", "that left no log: static, or with another libc"),
        (record.unseen_calls, "call", "to io_uring or cuFile, whose contents are not seen"),
        (
            record.fetches_without_delay,
            "fetch",
            "without a run-queue delay: not scheduled counts as blocked elsewhere",
        ),
        (
            measures.cpu_unknown.waits,
            "data wait",
            "without a run-queue delay: not scheduled counts as blocked elsewhere",
        ),
    ]
    return (
        *_paused(measures),
        *_of_network(measures),
        *(Gap(count(n, what), "incomplete", why) for n, what, why in incomplete if n),
        *(
            Gap(
                f"{call.op} {call.path or 'of a file that is not known'}", "incomplete", _hung(call)
            )
            for call in measures.in_flight
        ),
        *(Gap(count(n, what), "not measured", why) for n, what, why in missing if n),
        *_imported_gap(record.counters_only, record.has_events),
        *(
            Gap(spot.value.partition(": ")[0], "not measured", spot.value.partition(": ")[2])
            if spot.key == "not measured"
            else Gap(spot.key.removesuffix(" incomplete"), "incomplete", spot.value)
            for spot in measures.blind_spots
        ),
        *_job_gaps(measures),
        *_filling_gap(measures),
        *_faults_gap(measures),
        *_device_gaps(measures),
        Gap(
            "direct system calls",
            "not measured",
            "a call that passes no import slot is not seen: static programs, libc's own",
        ),
    )


SKEWED_S = 60.0  # clocks set by hand, or not at all


def _job_gaps(measures: Measures) -> Iterator[Gap]:
    """Yield missing or doubled ranks, and clocks without a common order."""
    job = measures.job
    if job.size is not None and job.ranks < job.size:
        n, more = job.size - job.ranks, ", …" * (job.size - job.ranks > 8)
        yield Gap(
            f"{n:,} of {count(job.size, 'rank')}",
            "not measured",
            f"left no log here: {job.missing}{more}; folders of other nodes are joined by "
            "`penstock gather`",
        )
    if job.doubled:
        why = "two trainings at once have this number: two jobs in one folder, reported as one"
        yield Gap(f"ranks {job.doubled}", "incomplete", why)
    for clock in measures.clocks:
        if clock.apart_s is not None and clock.how == "wall clock":
            why = (
                f"its processes and the others' are {show(clock.apart_s, 's')} apart by the clocks "
                "of their hosts: one of these is wrong, or they were no job together"
            )
            yield Gap(f"clock of {clock.host}", "incomplete", why)
        elif clock.how == "wall clock":
            why = "taken as it was: no steps that hosts take together, and no offset was measured"
            yield Gap(f"clock of {clock.host}", "not measured", why)
        elif abs(clock.moved_s) > SKEWED_S:
            why = f"it is {show(abs(clock.moved_s), 's')} off, by {clock.how}; its times were moved"
            yield Gap(f"clock of {clock.host}", "incomplete", why)


def _faults_gap(measures: Measures) -> tuple[Gap, ...]:
    """Return the reason why page faults are unknown or incomplete."""
    record, (state, why) = measures.recording, measures.faults.quality
    if state == "measured":
        return ()
    mapped = (
        f"; {count(record.mapped_files, 'data file')}, {show(record.mapped_bytes, 'B')}, are mapped"
        if record.mapped_files
        else ""
    )
    return (Gap("page faults", state, f"{why}{mapped}"),)


def _device_gaps(measures: Measures) -> tuple[Gap, ...]:
    seen = measures.devices
    gaps = []
    if seen.job_read_bytes is None:
        why = "bytes are asked of the system, not got from the device"
        gaps.append(Gap("page cache", "not measured", why))
    elif seen.read_amplification.value is None:
        gaps.append(
            Gap("device bytes per byte requested", "not measured", seen.read_amplification.why)
        )
    if not seen.accelerators:
        gaps.append(Gap("accelerator", "not measured", "compute is what is left of the wall time"))
    if not any(sample.moment == "before" for sample in measures.residency):
        why = "name the data with `penstock run --data PATH`"
        gaps.append(Gap("data in memory before", "not measured", why))
    return tuple(gaps)


def _filling_gap(measures: Measures) -> tuple[Gap, ...]:
    if not any(row.is_cut for row in measures.filling):
        return ()
    why = (
        "killed before the run's end: what it did last is not told, up to 3 s of copying or a pause"
    )
    return (Gap("filling of a tier", "incomplete", why),)


def _paused(measures: Measures) -> tuple[Gap, ...]:
    """Return a line on paused time.  No number includes paused time, not even compute."""
    if not measures.pauses:
        return ()
    processes = len({pause.process for pause in measures.pauses})
    s = paused_s(measures)
    times = count(len(measures.pauses), "pause")
    of = f" of {processes} processes, a mean over them" if processes > 1 else ""
    return (Gap(f"{show(s, 's')} not recorded", "not measured", f"as asked: {times}{of}"),)


def paused_s(measures: Measures) -> float:
    """Return the paused seconds, a mean over the paused processes."""
    s = sum(pause.end_s - pause.start_s for pause in measures.pauses)
    return s / len({pause.process for pause in measures.pauses})


def _hung(call: InFlight) -> str:
    who = call.role if call.pid is None else f"{call.role} {call.pid}"
    return f"{who} had been in it for {show(call.s, 's')} when its log ended"
