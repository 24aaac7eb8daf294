"""Rules about the recording, and about failed file calls.  Judges no wait."""

from penstock.explain import failures
from penstock.explain.findings.rule import Fine, RuleResult, Said, Threshold, Unjudged
from penstock.explain.measures import Measures
from penstock.explain.remedies import RUN, Remedy
from penstock.words import count, per_cent, show

__all__ = ["MANY_STARTS", "OVERHEAD", "failed_io", "incomplete", "overhead"]


def failed_io(measures: Measures) -> Said:
    """Calls on files failed as none does where storage, space, rights and limits are in order: EIO,
    ENOSPC, ESTALE, EDQUOT, ETIMEDOUT, EMFILE and their like; EACCES and EROFS of data and output.
    What fails in any program is none of it: paths that are looked for in vain, EEXIST, EAGAIN,
    ENOTTY, and calls on pipes and sockets."""
    failed = measures.failures
    if not failed:
        return Fine(failures.usual(measures))
    cures = failures.cures([failure.errno for failure in failed])
    return RuleResult(
        None,
        failures.calls_that_failed(failed),
        tuple(Remedy("job", cure) for cure in cures)
        or (Remedy("job", "look at the storage there, and at the job's own output"),),
        "failures",
    )


def incomplete(measures: Measures) -> Said:
    """Events are only counted, lost, or cut off, or ranks are missing, so that numbers which need
    them are too small."""
    state, why = measures.events_state
    if state == "measured":
        state, why = measures.spans_state
    if state == "measured":
        return Fine("nothing was lost")
    if measures.recording.counters_only or measures.recording.imported_lacks:
        return Unjudged(why)  # another tool's recording: the gaps list the tool's limits
    if measures.missing:
        remedy = Remedy(
            "job",
            "bring the folders of all nodes together; numbers of the job need all of its ranks",
            "penstock gather FOLDER... -o NEW",
        )
    elif measures.recording.folded:
        remedy = Remedy(
            "job",
            "a larger budget keeps more single events",
            "penstock run --budget 8GiB COMMAND",
        )
    else:
        remedy = Remedy("job", "the notes say what ended the recording", f"penstock report {RUN}")
    return RuleResult(None, (why,), (remedy,))


OVERHEAD = Threshold(
    0.02,
    "share",
    "of the processes' time",
    "what a cause must be worth to be a finding, the recorder is not allowed either",
)


MANY_STARTS = Threshold(
    16,
    "count",
    "programs in which a recorder started, and these starts are counted",
    "chosen: a start of some milliseconds is nothing to a program that trains, however few of them "
    "it starts; a script that starts programs of a millisecond pays mostly for starts",
)


LEAST_COST = Threshold(0.02, "s", "in all processes together", "chosen: no change is worth less")
SLOW_CALL_S = 5e-6  # a system call with a CPU and without a server takes 1 to 3 us
SHORT_OF_CPU = 0.05  # of the wall time
SHORT_OF_CPU_WITHOUT_STEPS = 0.01  # of the life: the part "not scheduled" is a lower bound


def _is_without_cpu(measures: Measures) -> bool:
    """Return True if the recorder's system calls took long and the job often had no CPU.

    A thread may lose the CPU at the end of a system call.
    """
    recording, wall_s = measures.recording, measures.training.wall_s or 0.0
    if not recording.own_calls or (recording.own_s or 0.0) < SLOW_CALL_S * recording.own_calls:
        return False
    if not measures.has_training:  # nobody's time without a CPU is known step by step
        queued_s = measures.startup_parts.get("not scheduled", 0.0)
        return queued_s is None or queued_s > SHORT_OF_CPU_WITHOUT_STEPS * (recording.life_s or 0.0)
    delayed_s = measures.standing.get("no CPU", 0.0) + measures.wait_s("not scheduled")
    return delayed_s > SHORT_OF_CPU * wall_s


def overhead(measures: Measures) -> Said:
    """The recorder's own cost is worth a finding itself: calls that are recorded, its own system
    calls, and in a script of many short programs the recorder's start in each of them."""
    recording = measures.recording
    if recording.event_cost_ns is None or not recording.life_s:
        return Unjudged("the cost of one call was not measured in this run")
    calls_s = recording.calls * recording.event_cost_ns / 1e9 + (recording.own_s or 0.0)
    starts_s = (recording.starts_s or 0.0) if recording.starts >= MANY_STARTS.value else 0.0
    lives_s = recording.lives_s or recording.life_s * max(1, recording.processes)
    share = (calls_s + starts_s) / (lives_s + starts_s)
    says = f"{show(calls_s, 's')} for {count(recording.calls, 'call')}"
    if recording.own_calls:
        says += f", {count(recording.own_calls, 'system call')} of the recorder's own"
    if starts_s:
        says += f" and {show(starts_s, 's')} for its start in {count(recording.starts, 'program')}"
    says += f", {per_cent(share)} of the processes' time"
    if share < OVERHEAD.value or calls_s + starts_s < LEAST_COST.value:
        return Fine(says)
    if _is_without_cpu(measures) and starts_s <= calls_s:
        return Unjudged(f"{says}, which includes time without a CPU")
    remedy = WINDOW if starts_s <= calls_s else _against_starts(measures)
    return RuleResult(None, (says,), (remedy,))


WINDOW = Remedy("code", "record a window: with penstock.record() around some steps")


def _against_starts(measures: Measures) -> Remedy:
    """Return the remedy by who starts the programs: the training, or a script around it."""
    recording = measures.recording
    if 2 * recording.trained_starts >= recording.starts:
        return Remedy(
            "code",
            "the training starts these programs: start one that takes many tasks, instead of one"
            " for each task",
        )
    before = "put `penstock run` before the program that trains, not before the script around it"
    if not measures.has_training:
        before = f"if a program of this script trains, {before}"
    return Remedy("code", before)
