"""The report's first sentence, from measures: how much the training waits, and the cause.

Knows no medium, no rule and no table.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.explain import startup
from penstock.explain.measures import PARTS, STORAGE_PARTS, Measures, Number, Rank
from penstock.explain.standing import ended_blocked, still_of
from penstock.words import count, per_cent, show

__all__ = ["HIGHLY", "MODERATELY", "Level", "Verdict", "level_of", "verdict_of"]

# XProf's levels of "input bound".
MODERATELY = 0.05
HIGHLY = 0.20

# Of the waiting: if storage has a larger share, all waiting counts as waiting on storage.  The
# limit of a level between both shares then shows no other cause.
MOSTLY = 0.9

SHORT_S = 1.0  # the headline of a shorter stretch is not in capitals

Level = Literal["not", "moderately", "highly", "unknown"]
UNBOUNDED = Number(None, "share", "not measured", "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence with a number: headline, colon, sentence.

    stall_least, stall_most: bounds of an unmeasured or incomplete stall.  remote: waits on remote
    storage, as a share of the wall time.
    """

    level: Level
    bound: Literal["I/O", "input", "checkpoint", "unknown"]
    headline: str
    sentence: str
    storage: Number
    stall: Number
    max_speedup: Number
    stall_least: Number = UNBOUNDED
    stall_most: Number = UNBOUNDED
    remote: Number = UNBOUNDED

    if TYPE_CHECKING:  # added by views.notebook: the value knows no view

        def _repr_html_(self) -> str: ...


def verdict_of(measures: Measures) -> Verdict:
    """Return the verdict, with the training thread's time without a CPU if the time is long."""
    verdict = replace(_judged(measures), remote=measures.remote_fraction)
    observed_s = measures.training.wall_s or measures.recording.life_s or 0.0
    if observed_s < SHORT_S:
        verdict = replace(verdict, headline=_in_lower_case(verdict.headline))
    delayed_s = measures.standing.get("no CPU", 0.0)
    share = delayed_s / (measures.training.wall_s or 1.0)
    if share < HIGHLY:
        return verdict
    remark = f"; for {_percent_of_run(share)} the training thread was ready but had no CPU"
    return replace(verdict, sentence=verdict.sentence + remark + _by_quota(measures, delayed_s))


# Of the time without a CPU: what a quota stopped less is no cause.
QUOTA_SHARE = 0.1


def _by_quota(measures: Measures, delayed_s: float) -> str:
    """Return how often a CPU quota stopped the job, start-up included, if it may be a cause."""
    seen = measures.machine
    if not seen.throttled or (seen.throttled_s or 0.0) < QUOTA_SHARE * delayed_s:
        return ""
    stops = count(seen.throttled, "time")
    return (
        f" (in the whole run the CPU quota stopped the job {stops}, {show(seen.throttled_s, 's')})"
    )


def _in_lower_case(headline: str) -> str:
    text = headline.lower().replace("i/o", "I/O")
    return text[:1].upper() + text[1:]


def _judged(measures: Measures) -> Verdict:
    """Return the verdict; NOT JUDGED if the run allows no level.

    The level is stated if the lower and the upper bound of the wait have one level, and as "at
    least" if only the lower bound has a level.
    """
    verdict, of_ranks = _verdict_between_bounds(measures), _of_ranks(measures)
    return replace(verdict, sentence=f"{verdict.sentence}; {of_ranks}") if of_ranks else verdict


def _verdict_between_bounds(measures: Measures) -> Verdict:
    still = still_of(measures)
    if still is not None and measures.has_training and not still.on_storage:
        why = "the job is suspended" if still.is_suspended else "the job stands still"
        return _verdict_of_still(measures, why)
    if still is None and measures.has_training and (why := ended_blocked(measures)):
        return _verdict_of_still(measures, why)
    verdict = _verdict_as_seen(measures)
    is_whole = measures.spans_state[0] == "measured"
    if is_whole and measures.doubt and verdict.stall.value is not None:
        return _beside_accelerators(measures, _between(measures, verdict))
    if verdict.stall.state != "incomplete":
        return _beside_accelerators(measures, verdict)
    if verdict.level == "not":
        verdict = replace(
            verdict, level="unknown", bound="unknown", headline="TRAINING NOT FULLY SEEN"
        )
    return replace(verdict, sentence=f"{verdict.sentence}, of what is left: {verdict.stall.why}")


def _verdict_of_still(measures: Measures, why: str) -> Verdict:
    """Return NOT JUDGED: a wait without an end shows nothing about the waits that have ended."""
    share = measures.stall_fraction
    waited = "" if share.value is None else f"; {_percent_of_run(share.value)} of it was waiting"
    return Verdict(
        level="unknown",
        bound="unknown",
        headline="NOT JUDGED",
        sentence=f"{why}: its training so far is no sample of what it does{waited}",
        storage=replace(measures.storage_fraction, state="incomplete", why=why),
        stall=replace(share, state="incomplete", why=why),
        max_speedup=Number(None, "x", "not measured", why),
    )


def _between(measures: Measures, verdict: Verdict) -> Verdict:
    """Return the verdict of a run in which some data waits may be unrecorded.

    If the bounds have different levels, state the lower bound's level as "at least moderately", or
    the upper bound's as "at most moderately"; if neither bound is moderate, there is no verdict.
    """
    least = min(1.0, measures.stall_least.value or 0.0)
    most = measures.stall_most.value or 0.0
    if level_of(least) != level_of(most) and level_of(least) == "not":
        return _without_level(measures, least, most)
    is_open = level_of(least) != level_of(most)
    unseen = most - least
    storage = (verdict.storage.value or 0.0) + unseen  # time of unknown use may be file calls
    return replace(
        verdict,
        headline=f"AT LEAST {verdict.headline}" if is_open else verdict.headline,
        stall_least=measures.stall_least,
        stall_most=measures.stall_most,
        max_speedup=_speedup(replace(verdict.storage, value=min(1.0, storage))),
        sentence=f"{verdict.sentence}; at most {_percent_of_run(most)}: {measures.doubt}",
    )


def _without_level(measures: Measures, least: float, most: float) -> Verdict:
    """Return only the bounds; the headline has the upper bound if at most moderate."""
    share = f"at least {_percent_of_run(least)} and at most {_percent_of_run(most)} of its time"
    if least < 0.01 and most > 0.99:
        share = "a share of its time that is not known"
    return Verdict(
        level="unknown",
        bound="unknown",
        headline="NOT JUDGED" if level_of(most) == "highly" else "AT MOST MODERATELY INPUT BOUND",
        sentence=f"the training waits for {share}: {measures.doubt}",
        storage=Number(None, "share", "not measured", measures.doubt),
        stall=Number(None, "share", "not measured", measures.doubt),
        max_speedup=Number(None, "x", "not measured", measures.doubt),
        stall_least=measures.stall_least,
        stall_most=measures.stall_most,
    )


# Of a wait: the wait is a loss if accelerators may have been idle for at least 90 % of the wait.
LOST = 0.9


def _beside_accelerators(measures: Measures, verdict: Verdict) -> Verdict:
    """Correct a verdict by the loop's clock if accelerators worked while the loop waited."""
    loss, waited = measures.accelerator_loss, measures.stall_most.value
    if loss is None or not waited or loss[1] >= LOST * waited:
        return verdict
    least, most = loss
    share = f"at most {_percent_of_run(most)}"
    if least >= WORTH_TELLING:
        share = f"{_percent_of_run(least)} to {_percent_of_run(most)}"
    storage = replace(verdict.storage, value=min(verdict.storage.value or most, most))
    verdict = replace(
        verdict,
        max_speedup=_speedup(storage),
        sentence=f"{verdict.sentence}; {_accelerators(measures)} worked during waits: {share} of"
        " the training time is lost",
    )
    if level_of(most) == "not":
        return replace(verdict, level="not", bound="I/O", headline="NOT I/O BOUND")
    is_between = level_of(least) != level_of(most)
    if level_of(most) == "highly":
        if not is_between or verdict.level == "unknown":
            return verdict
        return replace(verdict, level="unknown", bound="unknown", headline="NOT JUDGED")
    headline = verdict.headline.removeprefix("AT LEAST ").replace("HIGHLY", "MODERATELY")
    if verdict.level == "unknown":
        headline = "AT MOST MODERATELY INPUT BOUND"
    elif is_between:
        headline = f"AT MOST {headline}"
    return replace(verdict, level="unknown" if is_between else "moderately", headline=headline)


def _accelerators(measures: Measures) -> str:
    number = measures.idle_waiting.accelerators
    return "the accelerator" if number == 1 else f"the {number} accelerators"


# Of the wall time: a smaller difference between ranks is not mentioned.
WORTH_TELLING = 0.01


def _of_ranks(measures: Measures) -> str:
    """Return the job's loss and the ranks' mean wait if loss and mean differ; else ""."""
    how, stall, mean = measures.coupling.how, measures.stall_fraction, measures.mean_stall
    ranks = [row for row in measures.ranks if row.wall_s]
    if not ranks or mean.value is None:
        return ""
    if measures.missing and len(ranks) == 1:
        return f"{_name(ranks[0])} waits {_percent_of_run(_stall_share(ranks[0]))} of its time"
    of_all = f"the {len(ranks):,} recorded ranks" if measures.missing else "ranks"
    sentence = f"mean over {of_all} {_percent_of_run(mean.value)}"
    if measures.missing and how != "together":
        return sentence
    if how == "one" or stall.value is None:
        return ""
    if how in ("together", "groups"):
        if stall.value - mean.value < WORTH_TELLING:
            return ""
        return f"the job lost {_percent_of_run(stall.value)} to {_loser(measures)}, {sentence}"
    slow = max(ranks, key=_stall_share)
    if _stall_share(slow) - mean.value < WORTH_TELLING:
        return ""
    sentence = f"{_name(slow)} waits {_percent_of_run(_stall_share(slow))} of its time, {sentence}"
    return sentence if how == "not known" else f"ranks do not wait for each other: {sentence}"


def _loser(measures: Measures) -> str:
    """Name the rank that delayed the others, and the cause."""
    ranks = sorted(measures.ranks, key=lambda row: row.lost_s or 0.0)
    slow = ranks[-1]
    if not slow.lost_s or slow.lost_s < 0.5 * sum(row.lost_s or 0.0 for row in ranks):
        return "the rank that was held up longest, not the same one in all steps"
    parts = {
        "data wait": slow.data_wait_s,
        "checkpoints": slow.checkpoint_block_s,
        "own file calls": slow.calls_s,
    }
    return f"{_name(slow)}'s {max(parts, key=lambda part: parts[part])}"


def _stall_share(row: Rank) -> float:
    return (row.data_wait_s + row.checkpoint_block_s + row.calls_s) / row.wall_s


def _name(row: Rank) -> str:
    return f"process {row.process}" if row.rank is None else f"rank {row.rank}"


def _verdict_as_seen(measures: Measures) -> Verdict:
    storage, stall = measures.storage_fraction, measures.stall_fraction
    if storage.value is None or stall.value is None:
        return _verdict_without_steps(measures)
    training = measures.training
    wall_s = training.wall_s or 1.0
    waiting = stall.value
    is_storage = storage.value >= MOSTLY * waiting
    level = level_of(waiting if is_storage else storage.value)
    if level_of(waiting) != "not" and (level_of(waiting) != level or storage.value < 0.5 * waiting):
        return _verdict_off_storage(measures, waiting, wall_s)
    in_brackets = _shares_in_brackets(measures, wall_s)
    return Verdict(
        level=level,
        bound="I/O",
        headline=f"{level.upper()} I/O BOUND",
        sentence=f"{_percent_of_run(storage.value)} of the training waits on storage{in_brackets}",
        storage=storage,
        stall=stall,
        max_speedup=_speedup(storage),
    )


def _verdict_off_storage(measures: Measures, waiting: float, wall_s: float) -> Verdict:
    """Return the verdict, with the cause, of much waiting mostly not on storage."""
    storage, training = measures.storage_fraction, measures.training
    share = storage.value or 0.0
    level = level_of(waiting)
    wait_s, save_s = training.data_wait_s or 0.0, training.checkpoint_block_s or 0.0
    save_off_s = save_s - measures.checkpoint_storage_s
    is_input = wait_s - measures.data_storage_s >= save_off_s
    if is_input:
        why = _largest_parts(measures, wall_s)
        sentence = f"{_percent_of_run(wait_s / wall_s)} of the training waits for data ({why})"
        also_s, also_told = save_s, "is blocked by checkpoints"
    else:
        why = f"{_percent_of_run(save_off_s / wall_s)} in no file call"
        sentence = f"checkpoints block {_percent_of_run(save_s / wall_s)} of the training ({why})"
        also_s, also_told = wait_s, "waits for data"
    if also_s >= 0.01 * wall_s:  # the level counts data waits and checkpoints together
        sentence += f", {_percent_of_run(also_s / wall_s)} {also_told}"
    unseen = measures.wait_s(*UNSEEN) / wall_s
    least = "at least " if level_of(min(1.0, share + unseen)) != level_of(share) else ""
    also = "not I/O bound" if share < MODERATELY else f"{least}{level_of(share)} I/O bound"
    if share < MODERATELY and measures.wait_s("network") >= MODERATELY * wall_s:
        is_remote = measures.remote_s >= 0.5 * measures.wait_s("network")
        also = "waits on remote storage" if is_remote else "waits on the network"
        sentence += "" if is_remote else ", its requests not measured"
    elif share < MODERATELY and (storage.state == "incomplete" or unseen >= MODERATELY):
        also = "I/O not fully seen"
    return Verdict(
        level=level,
        bound="input" if is_input else "checkpoint",
        headline=f"{level.upper()} {'INPUT' if is_input else 'CHECKPOINT'} BOUND, {also}",
        sentence=f"{sentence}, {_percent_of_run(share)} waits on storage",
        storage=storage,
        stall=measures.stall_fraction,
        max_speedup=_speedup(storage),
    )


def _largest_parts(measures: Measures, wall_s: float) -> str:
    """Word the largest part of the data wait off storage, and a network part that matters."""
    part = max((p for p in PARTS if p not in STORAGE_PARTS), key=measures.wait_s)
    cause = OFF_STORAGE[part] if part != "network" else _network_cause(measures)
    if part == "cpu" and measures.is_cpu_unsure:
        cause = "on a CPU, or ready without one"
    why = f"{_percent_of_run(measures.wait_s(part) / wall_s)} {cause}"
    network = measures.wait_s("network") / wall_s
    if part != "network" and network >= MODERATELY:
        why += f", {_percent_of_run(network)} {_network_cause(measures)}"
    return why


def _network_cause(measures: Measures) -> str:
    """Return the endpoint with the longest data wait, in words, as cause of the network part."""
    if measures.remote_s < 0.5 * measures.wait_s("network"):
        return OFF_STORAGE["network"]
    first, *others = measures.remote_endpoints
    return f"on remote storage: {first}" + (f" and {len(others)} more" if others else "")


# Parts of a wait that may be I/O without a file call.
UNSEEN = ("blocked", "not observed")

# Words of the verdict for the largest part other than storage: "31 % ...".
OFF_STORAGE = {
    "cpu": "decoding on the CPU",
    "cached": "in file calls served from memory",
    "not scheduled": "because the loader had no CPU",
    "blocked": "on something that is no file call",
    "network": "on the network",
    "idle": "on workers that were idle",
    "loader start": "on starting the loader and its workers",
    "worker start": "on worker start",
    "program start": "on the start of programs",
    "pass end": "at the end of a pass",
    "hand-over": "on the hand-over",
    "not observed": "for reasons not observed",
}


def _verdict_without_steps(measures: Measures) -> Verdict:
    sentence = ""
    for layer in ("posix", "stdio"):
        rows = [row for row in measures.operations if row.layer == layer]
        if rows:
            calls = count(sum(row.calls for row in rows), f"{layer.upper()} call")
            sentence += f", {calls} " if sentence else f"{calls} on files took "
            sentence += show(sum(row.time_s or 0.0 for row in rows), "s")
    life = show(measures.recording.life_s, "s")
    mostly = startup.mostly(measures)
    also = f"; {mostly}" if mostly else ""
    return Verdict(
        level="unknown",
        bound="unknown",
        headline="NO TRAINING STEPS SEEN",
        sentence=f"{sentence} of {life}, all threads together{also}"
        if sentence
        else f"no call on a file was seen in {life}",
        storage=measures.storage_fraction,
        stall=measures.stall_fraction,
        max_speedup=Number(None, "x", "not measured", "no training steps seen"),
    )


def level_of(share: float) -> Literal["not", "moderately", "highly"]:
    """Return the level of waiting for `share` of the wall time."""
    return "not" if share < MODERATELY else "moderately" if share <= HIGHLY else "highly"


def _percent_of_run(share: float) -> str:
    """Return whole per cents for a sentence; below one per cent with a digit."""
    return f"{share * 100:.0f} %" if share >= 0.00995 or not share else per_cent(share)


def _shares_in_brackets(measures: Measures, wall_s: float) -> str:
    """Return the parts of the waits on storage in per cent; the parts add up to the whole."""
    training = measures.training
    shares = {
        "data": measures.data_storage_s / wall_s,
        "checkpoint": measures.checkpoint_storage_s / wall_s,
        "the training thread's own calls": (training.training_calls_s or 0.0) / wall_s,
    }
    shown = {name: share for name, share in shares.items() if share >= 0.00995}
    left = round(100 * sum(shares.values())) - sum(int(100 * share) for share in shown.values())
    for name in sorted(shown, key=lambda name: int(100 * shown[name]) - 100 * shown[name]):
        up = min(1, max(0, left))
        left -= up
        shown[name] = int(100 * shown[name]) / 100 + up / 100
    parts = [f"{name} {100 * share:.0f} %" for name, share in shown.items()]
    return f" ({', '.join(parts)})" if parts else ""


def _speedup(storage: Number) -> Number:
    """Return an upper bound of the speed-up: no waiting on storage, and no other change."""
    share = storage.value or 0.0
    if share >= 1:
        return Number(None, "x", "not measured", "the whole run waits on storage")
    return Number(1 / (1 - share), "x", storage.state, storage.why)
