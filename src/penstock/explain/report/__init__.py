"""Build a Report from measures: the content of every view, in order.  Knows no medium.

A Report is a frozen value, and the JSON of a Report is the interface of `--json`: keys are stable,
`report` is the version.  Every number keeps the number's state; an unmeasured cell is None.
"""

import re
import shlex
from dataclasses import replace

from penstock.explain.findings import RUN, WORTH, Check, Finding, Remedy, about_rule, judge
from penstock.explain.incidents import Incident, incidents_of
from penstock.explain.measures import Measures, Number, State
from penstock.explain.report.gaps import gaps_of, paused_s
from penstock.explain.report.pictures import pictures_of
from penstock.explain.report.shape import (
    VERSION,
    Column,
    Definition,
    Fact,
    Gap,
    Mark,
    Part,
    Picture,
    Report,
    Rest,
    Segment,
    Series,
    Table,
    to_json,
)
from penstock.explain.report.sound import check, from_json
from penstock.explain.report.tables import ratio, tables_of
from penstock.explain.report.times import (
    PART_LABELS,
    first_batch_parts,
    parts_of,
    startup_parts,
    stretches_of,
    wait_parts,
    wall_of,
)
from penstock.explain.verdict import Verdict, verdict_of
from penstock.words import Cell, count, show

__all__ = [
    "VERSION",
    "Cell",
    "Check",
    "Column",
    "Definition",
    "Fact",
    "Finding",
    "Gap",
    "Incident",
    "Mark",
    "Number",
    "Part",
    "Picture",
    "Remedy",
    "Report",
    "Rest",
    "Segment",
    "Series",
    "State",
    "Table",
    "Verdict",
    "about_rule",
    "from_json",
    "largest_speedup",
    "nothing_found",
    "report_of",
    "show",
    "to_json",
]


def report_of(measures: Measures, run: str = "RUN") -> Report:
    """Return the report of measures.

    run: the folder as named by the user, for the commands of remedies.  Raises PenstockError: the
    measures are of damaged data.
    """
    program = measures.program
    judgement = judge(measures)
    command = program.command if program else ""
    report = Report(
        report=VERSION,
        run=run,
        title=_name(command, program.executable if program else ""),
        command=command,
        folder=program.folder if program else "",
        host=program.host if program else "",
        subtitle=_subtitle(measures),
        verdict=verdict_of(measures),
        findings=tuple(_with_run(finding, run) for finding in judgement.findings),
        checks=tuple(replace(check, says=_typed(check.says, run)) for check in judgement.checks),
        wall=wall_of(measures),
        stretches=stretches_of(measures),
        wait=wait_parts(measures),
        first_batch=first_batch_parts(measures),
        checkpoint=parts_of(
            measures.checkpoint_parts,
            measures.events_state,
            PART_LABELS | {"other": "not in file calls"},
        ),
        reading=reading_of(measures),
        tables=tables_of(measures),
        pictures=pictures_of(measures),
        gaps=gaps_of(measures),
        cost=cost_of(measures),
        definitions=DEFINITIONS,
        incidents=incidents_of(measures),
        startup=startup_parts(measures),
    )
    check(report)
    return report


def largest_speedup(verdict: Verdict) -> str:
    """Return a view's sentence on the largest speed-up without waits on storage, local and remote.

    "" if the speed-up is too small to be worth a line.  If the bound includes time of unknown use,
    the speed-up by the measured waits stands before the bound.
    """
    bound = verdict.max_speedup.value
    if bound is None or bound <= 0:
        return ""
    most = 1 - 1 / bound
    least = most if verdict.storage.value is None else min(most, verdict.storage.value)
    remote = verdict.remote.value or 0.0
    places = "storage"
    if remote >= WORTH:
        places = "remote storage" if least < WORTH else "storage and remote storage"
    else:
        remote = 0.0
    speedup = _without(least + remote)
    if speedup is None or speedup < 1.005:
        return ""
    if most - least < WORTH:
        return (
            f"Without the wait on {places}: at most {show(_without(most + remote), 'x')} as fast."
        )
    said = f"Without the wait on {places}: {show(speedup, 'x')} as fast by the measured waits"
    bound = _without(most + remote)
    if bound is None:
        return f"{said}."
    return f"{said}, at most {show(bound, 'x')} if all time of unknown use is such a wait."


def _without(waiting: float) -> float | None:
    """Return the speed-up of a run without `waiting`, a share of its time; None: without limit."""
    left = 1 - waiting
    return 1 / left if left > 0 else None


def nothing_found(report: Report) -> str:
    """Return a view's sentence for a report without findings.

    A run without findings may still have problems.
    """
    said = "Nothing found that costs enough to be worth a change."
    if report.verdict.level in ("moderately", "highly"):
        said = f"No rule explains what the training waits for{_largest_parts(report)}."
    unjudged = sum(check.state == "not judged" for check in report.checks)
    if not unjudged:
        return said
    return f"{said} {unjudged} of {count(len(report.checks), 'rule')} could not be judged."


def _largest_parts(report: Report) -> str:
    """Return the largest part of the data wait, in brackets; "" without a data wait."""
    measured = [part for part in report.wait if part.share is not None]
    if not measured:
        return ""
    part = max(measured, key=lambda part: part.share or 0.0)
    return f" ({show(part.share, 'share')} of the data wait: {part.label})"


def _with_run(finding: Finding, run: str) -> Finding:
    """Return the finding with complete commands."""
    typed = tuple(
        replace(remedy, command=_typed(remedy.command, run)) for remedy in finding.remedies
    )
    return replace(finding, remedies=typed)


def _typed(text: str, run: str) -> str:
    """Return the text with the run's folder, quoted for a shell, in place of the word RUN."""
    return text.replace(RUN, shlex.quote(run))


SHELLS = ("sh", "bash", "dash", "ksh", "zsh")


def _name(command: str, executable: str) -> str:
    """Return the script or module of a command line, without env; else the program."""
    try:
        words = shlex.split(command)
    except ValueError:  # cut in the middle of a quoted word
        words = command.split()
    program = (words[0] if words else executable).rsplit("/", 1)[-1] or "run"
    while program == "env" and any("=" not in word and word[:1] != "-" for word in words[1:]):
        words = words[1:]
        if "=" not in words[0] and words[0][:1] != "-":
            program = words[0].rsplit("/", 1)[-1]
    if not program.startswith("python") and program not in SHELLS:
        return program
    for place, word in enumerate(words[1:], 1):
        if word == "-m" and place + 1 < len(words) and program not in SHELLS:
            return words[place + 1]
        if re.fullmatch(r"-[a-zA-Z]*c", word):  # bash -ec: a command, no script
            return f"{program} -c"
        if not word.startswith("-"):
            return word.rsplit("/", 1)[-1]
    return program


def _subtitle(measures: Measures) -> tuple[str, ...]:
    recording, training = measures.recording, measures.training
    # "in total" distinguishes the time of the whole run from the wall time of the training.
    total = " in total" if measures.has_training else ""
    words = [f"{show(recording.life_s, 's')}{total}"] if recording.life_s is not None else []
    if recording.running:  # in a visible place: all numbers are of this moment
        words.insert(0, "still running")
    if recording.failed:
        words.insert(0, "recording ended early")
    if measures.pauses:
        words.append(f"{show(paused_s(measures), 's')} of it not recorded")
    if recording.killed_mains:
        is_one = training.mains <= 1
        words.insert(
            0, "killed" if is_one else f"{recording.killed_mains} of {training.mains} killed"
        )
    if training.steps:
        words.append(count(training.steps, "step"))
    mains = training.mains
    if mains > 1:
        words.append(count(mains, "main process"))
    workers = max((epoch.workers or 0 for epoch in measures.epochs), default=0)
    if workers:
        words.append(count(workers, "worker") + (" each" if mains > 1 else ""))
    elif recording.workers:
        words.append(count(recording.workers, "worker"))
    others = recording.processes - mains - recording.workers
    if others > 0:
        words.append(count(others, "other process" if mains else "process"))
    if recording.hosts > 1:
        words.append(count(recording.hosts, "host"))
    return tuple(words)


# The facts about reading data: key, label, unit.
READING = (
    ("files", "data files read", "count"),
    ("read_bytes", "read from them", "B"),
    ("read_times", "read / size of the files", "x"),
    ("device_bytes", "read from devices, by the whole job", "B"),
    ("read_amplification", "device bytes per byte requested", "x"),
    ("reread_files", "files read more than once", "count"),
    ("metadata_per_file", "metadata calls per data file", "count"),
    ("empty_reads", "empty reads at end of file", "count"),
)


def reading_of(measures: Measures) -> tuple[Fact, ...]:
    facts = _read_by_calls(measures)
    if mapped := measures.recording.mapped_files:
        number = Number(mapped, "count", *measures.counts_state)
        remark = "what is read through a mapping makes no call: its bytes are in no number here"
        facts += (Fact("mapped_files", "data files mapped", number, remark),)
    return (*facts, *_resident(measures))


def _resident(measures: Measures) -> tuple[Fact, ...]:
    """Return how much of the data was in memory, before and after the run."""
    facts = []
    for seen in measures.residency:
        share = ratio(seen.resident_bytes, seen.size_bytes)
        state: State = "incomplete" if seen.left_out else "measured"
        why = "files were left out: too many, or not ours to look at" if seen.left_out else ""
        of = "the data named by --data" if seen.is_named else "the files that it opened"
        hosts = f"; the least of {seen.hosts} hosts" if seen.hosts > 1 else ""
        remark = (
            f"{show(seen.resident_bytes, 'B')} of {show(seen.size_bytes, 'B')}, "
            f"{count(seen.files, 'file')}: {of}{hosts}"
        )
        if share is not None:
            label = f"in memory {seen.moment} the run"
            facts.append(
                Fact(f"resident_{seen.moment}", label, Number(share, "share", state, why), remark)
            )
    return tuple(facts)


def _read_by_calls(measures: Measures) -> tuple[Fact, ...]:
    data, devices = measures.reading, measures.devices
    if not data.files:
        return ()
    amplified = devices.read_amplification
    values = {
        "device_bytes": devices.job_read_bytes,
        "read_amplification": amplified.value,
        "files": data.files,
        "read_bytes": data.read_bytes,
        "read_times": ratio(data.read_bytes, data.size_bytes),
        "reread_files": data.reread_files,
        "metadata_per_file": ratio(data.metadata, data.files),
        "empty_reads": data.empty_reads,
    }
    size, median = show(data.size_bytes, "B"), show(data.file_bytes_p50, "B")
    remarks = {
        "files": f"{size} together, median {median}",
        "read_bytes": "as asked of the system, from memory or device",
        "device_bytes": _by_devices(measures),
        "read_amplification": f"{show(devices.asked_bytes, 'B')} by calls, libraries included",
        "reread_files": f"{show(data.reread_bytes, 'B')} again" if data.reread_files else "",
        "metadata_per_file": f"{show(data.metadata_s, 's')} in them, all threads together",
        "empty_reads": f"{show(ratio(data.empty_reads or 0, data.reads), 'share')} of "
        + count(data.reads, "read"),
    }
    return tuple(
        Fact(key, label, Number(values[key], unit, *measures.counts_state), remarks.get(key, ""))
        for key, label, unit in READING
        if values[key] is not None
    )


def _by_devices(measures: Measures) -> str:
    """Return the remark about the bytes from devices, with the disks' own counts.

    The counts differ if other programs use the disks, or if files are on a network or in user
    space, on no disk of this host.
    """
    seen = measures.devices
    if seen.disk_read_bytes is None:
        return "by the kernel's account"
    written = show(seen.disk_written_bytes or 0, "B")
    return (
        f"by the kernel's account, libraries included; all programs together read "
        f"{show(seen.disk_read_bytes, 'B')} from this host's disks and wrote {written}"
    )


def cost_of(measures: Measures) -> tuple[Fact, ...]:
    recording = measures.recording
    each_ns = recording.event_cost_ns
    slots = "" if recording.slots is None else f"{count(recording.slots, 'import slot')} rewritten"
    facts = [
        Fact("attach_s", "to begin recording", _measured_or_not(recording.attach_s, "s"), slots),
        Fact(
            "calls", "calls recorded", Number(recording.calls, "count", *measures.counts_state), ""
        ),
        Fact(
            "event_s",
            "in the recorder, all threads together",
            Number(recording.calls * each_ns / 1e9, "s", "derived", "calls times the cost of one")
            if each_ns is not None
            else Number(
                None, "s", "not measured", "the cost of one call was not measured in this run"
            ),
            f"{show(each_ns / 1e9, 's')} a call" if each_ns is not None and recording.calls else "",
        ),
    ]
    if recording.own_calls:
        facts.append(
            Fact(
                "own_s",
                "in system calls of the recorder's own",
                Number(recording.own_s, "s"),
                f"{count(recording.own_calls, 'call')}, with time without a CPU in them",
            )
        )
    return tuple(facts)


def _measured_or_not(value: float | None, unit: str) -> Number:
    if value is None:
        return Number(None, unit, "not measured", "not in the log")
    return Number(value, unit)


DEFINITIONS = tuple(
    Definition(*line.split(": ", 1))
    for line in """\
wall: from the first step, its batch being there, to the last step, data wait or checkpoint
start-up: before it, since the recording began, by the thread that will train: imports, listing, \
reading, making files, loading a checkpoint, worker start, first batch, other file calls, CPU
data wait: the consumer is blocked in the outermost next() of a loader, or in making its iterator
checkpoint block: the step loop cannot advance because of a save
stall: data wait, checkpoint block and the training thread's own file calls
waits on storage: what of the stall is spent held up in file calls: not the time in them on a CPU, \
nor without one
not, moderately, highly: less than 5 %, 5 to 20 %, more than 20 % of the wall time
at most 1.26x as fast: if all waiting on storage went away and nothing else changed
read, write, open/stat/list: the worker that owed the batch was held up in a file call: the thread \
that fetches, or a helper thread that it was blocked for; never longer than the fetch was neither \
on a CPU nor waiting for one
page fault: the same of a page of a mapped file that was not in memory
CPU (decode): it was in a fetch, in no file call, on a CPU
file calls from memory: it was in a fetch, in a file call, on a CPU: copying, looking up names
not scheduled: it was in a fetch, in a file call or not, ready to run, but had no CPU
network: it was in a fetch, blocked in a call on a socket, or any thread was that got an answer; \
connect, send, first byte (from a request to the first bytes of its answer), transfer (later \
bytes), back-off (asleep between a request that failed and its retry)
waits on remote storage: half of the network part or more goes to endpoints that no process of the \
job answers
blocked elsewhere: it was in a fetch, none of these: asleep on something that is no file call
no known loader: the training thread was blocked, while it computed nothing, for another thread or \
program; the parts are what that one did meanwhile
compute or data wait, not known which: steps without a known loader, in which nothing shows what \
the training thread did
worker idle: it was in no fetch and had not begun the one that was owed
loader start: the loader made its iterator: data set pickled, workers started
worker start: the worker that owed the batch was not running yet
start of programs: a program that the training started for its batch was not running yet
end of the epoch: the epoch was over, the loader ended its workers
hand-over: it was done, and the batch on its way: pickling, queue, pinned memory
not observed: nothing is known of who made the batch
tf.data and Grain: they do not say who made a batch: calls of any thread that may have made it count
time in calls: inside file calls, summed over threads: more than anyone waited
""".splitlines()
)
