"""Judge the measures: findings with their meaning, the remedy, and the gain.

A rule is a function from measures to a result: a finding, or the reason for no finding, or the
reason for no judgement.  No rule changes anything, prints anything or knows another rule: a
relation between rules is data (`suppresses`).

Gains are upper bounds: seconds of wall time in which the cause blocked the step loop.  Time inside
calls without a wait is no gain.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from penstock.explain.findings.memory import (
    AGAIN,
    ALL_BY_WORKERS,
    ALL_OF_IT,
    CLIFF,
    IN_FAULTS,
    LONGEST_FAULT,
    OF_MEMORY,
    REREAD,
    cache_cliff,
    calls_faulted,
    each_reads_all,
    each_worker_reads_all,
    mapped_files,
    read_again,
    reread_remote,
    same_bytes_again,
)
from penstock.explain.findings.network import (
    AT_ONCE,
    FIRST_BYTE_SHARE,
    PER_CONNECTION,
    REOPENED,
    connections_anew,
    endpoint_bound,
    few_at_once,
)
from penstock.explain.findings.reads import (
    ABOVE,
    BLOCKED_FILES,
    CROWD,
    CROWDED,
    EMPTY_PER_OPEN,
    EMPTY_SHARE,
    FAR_BELOW,
    FEW_IN_TAIL,
    FEW_SLOW,
    LEAST_ALIKE,
    LEAST_SLOTS,
    METADATA_OF_CALLS,
    METADATA_PER_OPEN,
    METADATA_SHARE,
    NEAR,
    RANDOM_SHARE,
    SMALL_READ_BYTES,
    SMALL_SHARE,
    TAIL,
    TAIL_SHARE,
    WAITS,
    bandwidth_bound,
    calls_metadata,
    calls_random,
    calls_small,
    empty_reads,
    metadata_storm,
    random_reads,
    small_reads,
    tail_latency,
    too_many_readers,
)
from penstock.explain.findings.recording import (
    LEAST_COST,
    MANY_STARTS,
    OVERHEAD,
    failed_io,
    incomplete,
    overhead,
)
from penstock.explain.findings.requests import (
    FEW_LATE,
    LATE,
    LATE_SHARE,
    LEAST_ANSWERS,
    LEAST_LOOKS,
    LOOK_SHARE,
    PIECE_SHARE,
    late_answers,
    lists_and_heads,
    repeated_requests,
    same_objects_again,
    small_ranges,
)
from penstock.explain.findings.rule import (
    WORTH,
    Check,
    Finding,
    Fine,
    Judgement,
    Rule,
    RuleResult,
    Threshold,
)
from penstock.explain.findings.saves import (
    RESTORE_S,
    RESTORE_SHARE,
    SAME_BYTES,
    STARTUP_SHARE,
    checkpoint_blocks,
    duplicate_writes,
    failed_saves,
    slow_checkpoint_target,
    slow_restore,
    slow_startup,
)
from penstock.explain.findings.workers import (
    BUSY,
    CPU_SHARE,
    LEAST_FETCHES,
    LINE,
    MOSTLY,
    OF_THE_WALL,
    QUEUE_SHARE,
    SAMPLES,
    STRAGGLES,
    decode_bound,
    oversubscribed,
    straggler,
    too_few_workers,
)
from penstock.explain.measures import Measures, Number, State
from penstock.explain.remedies import NAME_THE_TIER, RUN, Remedy
from penstock.explain.standing import ended_blocked, still_of
from penstock.words import per_cent, show

__all__ = [
    "RULES",
    "RUN",
    "WORTH",
    "Check",
    "Finding",
    "Judgement",
    "Remedy",
    "Rule",
    "Threshold",
    "about_rule",
    "describe_rules",
    "judge",
]

RULES: tuple[Rule, ...] = (
    Rule(
        "D1",
        "metadata storm",
        metadata_storm,
        (METADATA_SHARE, METADATA_PER_OPEN, METADATA_OF_CALLS, BLOCKED_FILES),
        of_calls=calls_metadata,
    ),
    Rule(
        "D2",
        "small reads, bound by latency",
        small_reads,
        (SMALL_SHARE, SMALL_READ_BYTES, FAR_BELOW, FEW_SLOW),
        of_calls=calls_small,
    ),
    Rule(
        "D3", "bandwidth at the tier's ceiling", bandwidth_bound, (NEAR, WAITS, ABOVE), ("D2", "W1")
    ),
    Rule("D4", "random reads of large files", random_reads, (RANDOM_SHARE,), ("D2",), calls_random),
    Rule("D5", "cache cliff", cache_cliff, (CLIFF, OF_MEMORY)),
    Rule("D6", "the same data again over the network", reread_remote, (REREAD,)),
    Rule(
        "D7",
        "page faults of mapped files",
        mapped_files,
        (IN_FAULTS, LONGEST_FAULT),
        of_calls=calls_faulted,
    ),
    Rule("D8", "straggler", straggler, (STRAGGLES, LEAST_FETCHES)),
    Rule("D9", "tail latency", tail_latency, (TAIL, TAIL_SHARE, FEW_IN_TAIL, LEAST_ALIKE)),
    Rule("D10", "each rank reads all of the data", each_reads_all, (ALL_OF_IT,)),
    Rule(
        "D12",
        "the same bytes again",
        same_bytes_again,
        (AGAIN,),
        ("D2", "D4", "D9"),
        of_calls=read_again,
    ),
    Rule("D13", "each worker reads all of the data", each_worker_reads_all, (ALL_BY_WORKERS,)),
    Rule("W1", "too few workers", too_few_workers, (BUSY,)),
    Rule(
        "W2", "decoding on the CPU, not I/O", decode_bound, (CPU_SHARE, OF_THE_WALL, SAMPLES, LINE)
    ),
    Rule("W3", "fetches without a CPU", oversubscribed, (QUEUE_SHARE, OF_THE_WALL, MOSTLY)),
    Rule("W4", "slow start-up", slow_startup, (STARTUP_SHARE,)),
    Rule(
        "N1",
        "requests to remote storage one after another",
        few_at_once,
        (FIRST_BYTE_SHARE, AT_ONCE),
        ("W1",),
    ),
    Rule("N2", "remote storage at its ceiling", endpoint_bound, (NEAR,), ("N1", "W1")),
    Rule("N3", "requests repeated", repeated_requests),
    Rule("N4", "the same objects again", same_objects_again, (REREAD,)),
    Rule("N5", "lists and heads", lists_and_heads, (LOOK_SHARE, LEAST_LOOKS)),
    Rule("N6", "connections opened anew", connections_anew, (REOPENED, PER_CONNECTION)),
    Rule(
        "N7",
        "late answers of remote storage",
        late_answers,
        (LATE, LATE_SHARE, FEW_LATE, LEAST_ANSWERS),
    ),
    Rule("N8", "small ranges of large objects", small_ranges, (PIECE_SHARE,)),
    Rule("C1", "checkpoint blocks the steps", checkpoint_blocks),
    Rule("C2", "slow checkpoint target", slow_checkpoint_target, (FAR_BELOW,)),
    Rule("C3", "ranks write the same bytes", duplicate_writes, (SAME_BYTES,)),
    Rule("C4", "slow restart", slow_restore, (RESTORE_S, RESTORE_SHARE)),
    Rule("C5", "saves that failed", failed_saves, of_calls=failed_saves),
    Rule("E1", "empty reads at end of file", empty_reads, (EMPTY_SHARE, EMPTY_PER_OPEN)),
    Rule(
        "E2",
        "too many readers on a device that seeks",
        too_many_readers,
        (CROWDED, CROWD, SMALL_READ_BYTES, LEAST_SLOTS),
        ("W1",),
    ),
    Rule("F1", "file calls that failed", failed_io, of_calls=failed_io),
    Rule("X1", "recording incomplete", incomplete, of_calls=incomplete),
    Rule(
        "X2", "cost of recording", overhead, (OVERHEAD, LEAST_COST, MANY_STARTS), of_calls=overhead
    ),
)


# Rules that judge no wait.
OF_THE_RECORDING = ("X1", "X2")
OF_FAILURES = ("F1", "C5")  # shown first: data loss matters more than slowness


def judge(measures: Measures) -> Judgement:
    """Apply every rule; keep findings worth a change that no other finding explains."""
    findings: dict[str, Finding] = {}
    checks: dict[str, Check] = {}
    for rule in RULES:
        judges = rule.judges if measures.has_training else rule.of_calls
        if judges is None:
            checks[rule.rule] = Check(rule.rule, rule.title, "not judged", "no training steps seen")
            continue
        said = judges(measures)
        if isinstance(said, RuleResult):
            finding = _finding(rule, said, measures)
            if finding.share.value is None or finding.share.value >= WORTH:
                findings[rule.rule] = finding
                continue
            reason = f"{per_cent(finding.share.value)} of {finding.of}: {said.evidence[0]}"
            checks[rule.rule] = Check(rule.rule, rule.title, "fine", reason)
        else:
            state = "fine" if isinstance(said, Fine) else "not judged"
            applies = said.applies if isinstance(said, Fine) else True
            checks[rule.rule] = Check(rule.rule, rule.title, state, said.says, applies)
    checks |= _doubted(checks, measures)
    for rule in RULES:
        for other in rule.suppresses if rule.rule in findings else ():
            if silenced := findings.pop(other, None):
                reason = f"{rule.rule} explains it: {silenced.evidence[0]}"
                checks[other] = Check(other, silenced.title, "suppressed", reason)
    return Judgement(
        tuple(
            sorted(
                findings.values(),
                key=lambda entry: (entry.rule not in OF_FAILURES, -(entry.gain.value or 0.0)),
            )
        ),
        tuple(checks[rule.rule] for rule in RULES if rule.rule in checks),
    )


# Rules whose evidence needs no data wait.
OF_NO_WAIT = (*OF_THE_RECORDING, *OF_FAILURES, "W4", "C1", "C2", "C3", "C4")


def _doubted(checks: Mapping[str, Check], measures: Measures) -> dict[str, Check]:
    """Withdraw "fine" where unseen data waits may be a finding."""
    state, why = measures.spans_state
    doubt = f"waits may be missing: {why}" if state != "measured" else measures.doubt
    if not doubt and (still := still_of(measures)):
        doubt = "the job is suspended" if still.is_suspended else "the job stands still"
    doubt = doubt or ended_blocked(measures) or _unobserved(measures)
    if not doubt:
        return {}
    exempt = OF_THE_RECORDING if state != "measured" or measures.missing else OF_NO_WAIT
    return {
        rule: replace(check, state="not judged", says=doubt)
        for rule, check in checks.items()
        if check.state == "fine" and rule not in exempt
    }


def _unobserved(measures: Measures) -> str:
    """Return the reason not to judge rules about waits; "" if the causes of waits are known.

    Much of the wait has no known cause if no loader reports which thread or process makes a batch.
    """
    training, share = measures.training, 0.0
    if training.wall_s and (training.inferred_waits or training.pooled_waits):
        share = measures.wait_s("not observed") / training.wall_s
    if share < WORTH:
        return ""
    return f"the cause of data waits, {per_cent(share)} of the wall time, was not observed"


def _finding(rule: Rule, said: RuleResult, measures: Measures) -> Finding:
    of_s = said.of_s or measures.training.wall_s
    remedies = tuple(_with_a_tier(remedy, measures) for remedy in said.remedies)
    if said.gain_s is None or not of_s:
        none = Number(None, "s", "not measured", "it is no wait")
        share = Number(None, "share", "not measured", "it is no wait")
        return Finding(rule.rule, rule.title, said.evidence, none, share, remedies, said.shown)
    gain_s = min(said.gain_s, of_s)  # a mean over many processes may exceed the run's wall time
    if said.of_s is None and (loss := measures.accelerator_loss):
        gain_s = min(gain_s, loss[1] * of_s)  # waits while an accelerator works cost nothing
    state, why = measures.events_state
    state_of_gain: State = "derived" if state == "measured" else state
    return Finding(
        rule.rule,
        rule.title,
        said.evidence,
        Number(gain_s, "s", state_of_gain, why),
        Number(gain_s / of_s, "share", state_of_gain, why),
        remedies,
        said.shown,
        _whole(said, measures),
    )


def _with_a_tier(remedy: Remedy, measures: Measures) -> Remedy:
    """Add the node's own NVMe to a remedy for a faster tier, if the run does not use the NVMe."""
    used = {row.mount for row in measures.storage}
    free = next((tier for tier in measures.flash if tier.mount not in used), None)
    if free is None or NAME_THE_TIER not in remedy.says:
        return remedy
    advice = (
        f"; first name a folder on {free.mount}, NVMe of this node ({free.device}, "
        f"{show(free.free_bytes, 'B')} free): `penstock tiers add fast FOLDER`"
    )
    return replace(remedy, says=remedy.says.replace(NAME_THE_TIER, advice))


def _whole(said: RuleResult, measures: Measures) -> str:
    """Return the denominator of a finding's share, in words."""
    if not measures.has_training:
        return "the run"
    return "the wall time" if said.of_s is None else "start-up and wall time"


def describe_rules(examples: Mapping[str, str] | None = None) -> str:
    """Return RULES as Markdown for the documentation.

    examples: by rule, the text of a finding on a terminal.
    """
    return "\n".join(_described(rule, (examples or {}).get(rule.rule, "")) for rule in RULES)


def _described(rule: Rule, example: str) -> str:
    text = " ".join((rule.judges.__doc__ or "").split())
    lines = [f"## {rule.rule}: {rule.title}", "", text]
    if not rule.thresholds:
        lines += ["", "It has no threshold of its own."]
    else:
        lines.append("")
    for threshold in rule.thresholds:
        lines.append(f"- **{_number_of(threshold)}** {threshold.of}: {threshold.because}.")
    if rule.suppresses:
        lines += [
            "",
            f"Suppresses {' and '.join(rule.suppresses)}: the same time, by another name.",
        ]
    if example:
        lines += ["", "For example:", "", *(f"    {line}".rstrip() for line in example.split("\n"))]
    return "\n".join((*lines, ""))


def about_rule(code: str) -> tuple[str, tuple[str, ...]]:
    """Return the condition of a rule in words, and each limit with the reason.

    Two empty values if the rule does not exist.
    """
    for rule in RULES:
        if rule.rule == code:
            limits = (f"{_number_of(t)} {t.of}: {t.because}." for t in rule.thresholds)
            return " ".join((rule.judges.__doc__ or "").split()), tuple(limits)
    return "", ()


def _number_of(threshold: Threshold) -> str:
    """Return the number in the units of the reasons: sizes of reads are powers of two."""
    if threshold.unit == "B":
        return f"{threshold.value / 1024:.0f} KiB"
    if threshold.unit == "x":
        return f"{threshold.value:g} times"
    return re.sub(r"\.0+(?= )", "", show(threshold.value, threshold.unit))
