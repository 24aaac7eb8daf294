"""The distribution of time: the bar of wall time, its stretches, the parts of waits."""

from dataclasses import replace
from typing import Any, Literal

from penstock.explain import startup
from penstock.explain.measures import (
    PARTS,
    STORAGE_PARTS,
    Measures,
    Number,
    State,
    Training,
)
from penstock.explain.measures.network import by_phase
from penstock.explain.report.shape import Fact, Part, Segment
from penstock.words import count, show

__all__ = [
    "PART_LABELS",
    "first_batch_parts",
    "parts_of",
    "startup_parts",
    "stretches_of",
    "wait_parts",
    "wall_of",
]

PART_LABELS = {
    "read": "read",
    "write": "write",
    "metadata": "open, stat, list",
    "page fault": "page fault",
    "cpu": "CPU (decode)",
    "cached": "file calls from memory",
    "not scheduled": "not scheduled",
    "blocked": "blocked elsewhere",
    "network": "network",
    "network connect": "network: connect",
    "network send": "network: send",
    "network first byte": "network: first byte",
    "network transfer": "network: transfer",
    "network back-off": "network: back-off",
    "idle": "worker idle",
    "loader start": "loader start",
    "worker start": "worker start",
    "program start": "start of programs",
    "pass end": "end of the epoch",
    "hand-over": "hand-over",
    "not observed": "not observed",
}

CHECKPOINT_ROWS = 500  # limit of queries/checkpoints.sql

# Waits of the training thread for things other than data; each wait has a separate segment.
STANDING = (
    ("accelerator", "waits for the accelerator"),
    ("exchange", "waits for other ranks"),
    ("save", "waits for a save in the background"),
    ("interpreter lock", "interpreter lock"),
    ("after backward", "waits between backward pass and optimizer"),
    ("no CPU", "ready without a CPU"),
)


def wall_of(measures: Measures) -> tuple[Segment, ...]:
    if not measures.has_training:
        return ()
    training = measures.training
    wall_s = training.wall_s or 1.0
    wait_s, save_s = training.data_wait_s or 0.0, training.checkpoint_block_s or 0.0
    own_s = training.training_calls_s or 0.0
    left_s = max(0.0, wall_s - wait_s - save_s - own_s)
    unsure_s = min(left_s, measures.unsure_share * wall_s) if measures.unsure else 0.0
    compute_s = left_s - unsure_s
    stood = []
    for key, label in STANDING:
        s = min(compute_s, measures.standing.get(key, 0.0))
        if key == "no CPU":
            label += _in_all(measures, s)
        stood.append((key, label, s))
        compute_s -= s
    storage_s, cpu_s = measures.data_storage_s, measures.wait_s("cpu")
    network_s = measures.wait_s("network")
    save_storage_s = min(save_s, measures.checkpoint_storage_s)
    seconds = [
        ("compute", "compute", compute_s),
        *stood,
        ("unfed", "compute or data wait: not known which", unsure_s),
        ("own", "file calls of the training thread", own_s),
        ("data storage", "data wait: storage", storage_s),
        ("data cpu", _cpu_label(measures), cpu_s),
        ("data network", "data wait: network", network_s),
        ("data other", _other(measures), max(0.0, wait_s - storage_s - network_s - cpu_s)),
        ("checkpoint storage", "checkpoint: storage", save_storage_s),
        ("checkpoint other", "checkpoint: other", save_s - save_storage_s),
    ]
    whole_s = sum(s for _, _, s in seconds) or 1.0
    state, _ = measures.events_state
    derived: State = "derived" if state == "measured" else state
    return tuple(
        Segment(key, label, s, s / whole_s, "not measured" if key == "unfed" else derived)
        for key, label, s in seconds
        if s > 0
    )


def _cpu_label(measures: Measures) -> str:
    return f"data wait: CPU (decode){' or no CPU' if measures.is_cpu_unsure else ''}"


def _in_all(measures: Measures, shown_s: float) -> str:
    """Return the whole time without a CPU, as in the verdict, if other segments hold a part."""
    all_s, wall_s = measures.standing.get("no CPU", 0.0), measures.training.wall_s or 1.0
    if all_s - shown_s < 0.01 * wall_s:
        return ""
    return f" ({all_s / wall_s:.0%} in all)".replace("%", " %")


def _other(measures: Measures) -> str:
    """Return the label for the rest of the data wait.

    The label names the largest part, or the two largest parts if neither is above half.
    """
    shown = {"cpu", "network", *STORAGE_PARTS}
    seconds = {part: measures.wait_s(part) for part in PARTS if part not in shown}
    largest = max(seconds, key=lambda part: seconds[part])
    if not seconds[largest]:
        return "data wait: other"
    if seconds[largest] <= 0.5 * sum(seconds.values()):
        first, second = sorted(seconds, key=lambda part: seconds[part], reverse=True)[:2]
        return f"data wait: mostly {PART_LABELS[first]} and {PART_LABELS[second]}"
    is_all = seconds[largest] >= 0.95 * sum(seconds.values())
    return f"data wait: {'' if is_all else 'mostly '}{PART_LABELS[largest]}"


def stretches_of(measures: Measures) -> tuple[Fact, ...]:
    training, recording = measures.training, measures.recording
    if not measures.has_training:
        life = Fact("life_s", "life", Number(recording.life_s, "s"), "")
        return (life, _moved(measures, "read"), _moved(measures, "written"))
    waits = _waits(training)
    blocking = [save for save in measures.checkpoints if save.blocked_s]
    saves = count(sum(save.is_good for save in blocking), "checkpoint")
    if len(blocking) == CHECKPOINT_ROWS:
        saves = f"at least {saves}"
    if failed := sum(save.outcome in ("failed", "cut off") for save in blocking):
        saves += f", {failed} failed"
    if training.checkpoint_block_s and not measures.checkpoints:
        saves = ""  # a run reduced by rank has the time of saves, but not the number
    per = ", a mean over main processes" if training.mains > 1 else ""
    facts = [
        (
            "startup_s",
            "start-up",
            training.startup_s,
            _first(training.first_batch_s),
        ),
        (
            "wall_s",
            "wall",
            training.wall_s,
            f"{count(training.steps, 'step')}{per}",
        ),
        ("data_wait_s", "data wait", training.data_wait_s or 0.0, waits),
        ("checkpoint_block_s", "checkpoint block", training.checkpoint_block_s or 0.0, saves),
        ("after_s", "after the last step", training.after_s, ""),
    ]
    quality = measures.spans_state
    if quality[0] == "measured" and measures.missing:
        quality = "incomplete", measures.missing
    stretches = [
        Fact(key, label, Number(s, "s", *quality), remark) for key, label, s, remark in facts
    ]
    if measures.unsure:
        stretches[2] = _data_wait_seen(measures, stretches[2])
    return (*stretches, *_of_ranks(measures), *_idle_waiting(measures))


def _of_ranks(measures: Measures) -> tuple[Fact, ...]:
    """Return the ranks' mean wait beside the job's loss."""
    how = {
        "together": "ranks wait for each other: data wait, checkpoints and own calls are of the"
        " one that holds up all",
        "groups": "ranks wait for each other in groups: data wait, checkpoints and own calls are of"
        " the rank that holds up each group",
        "apart": "ranks do not wait for each other: the times above are means",
        "not known": "whether ranks wait for each other is not known: the times above are means",
    }.get(measures.coupling.how)
    if how is None or measures.training.mains < 2:
        return ()
    return (Fact("mean_stall", "stall, mean over ranks", measures.mean_stall, how),)


def _waits(training: Training) -> str:
    """Return the number of data waits, and the sources of the waits."""
    words = [count(training.waits, "wait")] if training.waits else []
    if training.inferred_waits:
        words.append(f"{count(training.inferred_waits, 'wait')} in no known loader")
    return ", ".join(words) or "no loader seen"


def _data_wait_seen(measures: Measures, fact: Fact) -> Fact:
    """Return the data wait of a run with possibly unrecorded waits: never a zero."""
    if not measures.training.waits and not fact.number.value:
        return replace(fact, number=Number(None, "s", "not measured", measures.unsure), remark="")
    number = replace(fact.number, state="incomplete", why=measures.unsure)
    return replace(fact, number=number, remark=f"at least, {fact.remark}")


def _idle_waiting(measures: Measures) -> tuple[Fact, ...]:
    """Return how much of the data wait the accelerators were idle, as far as samples show."""
    share = measures.idle_waiting.share
    if share is None:
        return ()
    least, most = share
    of = count(measures.idle_waiting.accelerators, "accelerator")
    between = "" if most - least < 0.05 else f"at least, {show(most, 'share')} at most, "
    idle = Number(least, "share", "derived")
    return (Fact("accelerator_idle", "idle while waiting", idle, f"{between}{of} by NVML"),)


def _moved(measures: Measures, how: Literal["read", "written"]) -> Fact:
    """Return the bytes read from, or written to, the job's own files.

    Counts the calls of the layer with more bytes: POSIX or STDIO.
    """
    layers: dict[str, int] = dict.fromkeys(("posix", "stdio"), 0)
    for row in measures.files:
        layers[row.layer] += row.read_bytes if how == "read" else row.written_bytes
    layer = max(layers, key=lambda layer: layers[layer])
    state, why = measures.counts_state
    moved = Number(layers[layer], "B", state, why)
    if state == "incomplete" and not layers[layer]:  # no known bytes are not zero bytes
        moved = Number(None, "B", "not measured", why)
    of_it = "" if layer == "posix" else ", by STDIO"
    return Fact(f"{how}_bytes", how, moved, f"data and output files{of_it}")


def _first(first_batch_s: float | None) -> str:
    return "" if first_batch_s is None else f"first batch {show(first_batch_s, 's')}"


def wait_parts(measures: Measures) -> tuple[Part, ...]:
    parts = parts_of(by_phase(measures.wait_parts, measures.network), measures.events_state)
    if measures.training.pooled_waits:
        parts = tuple(_pooled(part) for part in parts)
    if not parts or not measures.recording.mapped_files or measures.faults.is_measured:
        return parts
    mapped = count(measures.recording.mapped_files, "data file")
    why = f"{mapped} mapped into memory: {measures.faults.quality[1]}"
    return (
        *parts,
        Part("page fault", PART_LABELS["page fault"], None, None, True, "not measured", why),
    )


def first_batch_parts(measures: Measures) -> tuple[Part, ...]:
    seconds = by_phase(measures.first_batch_parts, measures.first_batch_network)
    return parts_of(seconds, measures.events_state)


def _pooled(part: Part) -> Part:
    """Return a part of waits for a loader that does not report the maker of a batch."""
    if part.state == "incomplete" or part.key not in (*STORAGE_PARTS, "cpu", "blocked"):
        return part
    why = "the loader does not say who makes a batch: any thread that may have is looked at"
    return replace(part, state="derived", why=why)


def parts_of(
    seconds: Any, quality: tuple[State, str], labels: dict[str, str] = PART_LABELS
) -> tuple[Part, ...]:
    whole = sum(seconds.values())
    if not whole:
        return ()
    parts = []
    for key, s in sorted(seconds.items(), key=lambda item: -item[1]):
        state, why = quality
        if state == "measured" and key in ("cpu", "cached", "not scheduled", "blocked"):
            state, why = "derived", "spread evenly over the fetch's time outside file calls"
        parts.append(Part(key, labels[key], s, s / whole, key in STORAGE_PARTS, state, why))
    return tuple(parts)


def startup_parts(measures: Measures) -> tuple[Part, ...]:
    whole = sum(s or 0.0 for s in measures.startup_parts.values())
    return tuple(
        Part(
            key,
            startup.LABELS[key],
            s,
            None if s is None else s / whole,
            key in startup.STORAGE,
            *startup.quality(measures, key),
        )
        for key, s in measures.startup_parts.items()
        if whole
    )
