"""Rules about checkpoints and start-up: the cost of a save, and of a restart."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from penstock.explain import failures, startup
from penstock.explain.findings.reads import FAR_BELOW
from penstock.explain.findings.rule import WORTH, Fine, RuleResult, Said, Threshold, Unjudged
from penstock.explain.measures import Measures, RecordedCheckpoint
from penstock.explain.remedies import FASTER_TIER, NAME_THE_TIER, RUN, Remedy
from penstock.words import count, per_cent, show

__all__ = [
    "RESTORE_S",
    "RESTORE_SHARE",
    "SAME_BYTES",
    "STARTUP_SHARE",
    "checkpoint_blocks",
    "duplicate_writes",
    "failed_saves",
    "slow_checkpoint_target",
    "slow_restore",
    "slow_startup",
]

CHECKPOINTER = Remedy(
    "save",
    "save through penstock.save.Checkpointer: the steps stand still for a copy in memory only, "
    "and what counts as saved is whole",
)
# The program and the paths stay unchanged; the tier is on a fast disk of the node.
BURST = Remedy(
    "save",
    "write checkpoints to a fast disk first, and drain them to their paths beside the training; "
    f"the program stays as it is{NAME_THE_TIER}",
    "penstock run --burst-buffer fast COMMAND",
)

ASYNC_SAVE = Remedy(
    "code",
    "save in the background: torch.distributed.checkpoint.async_save, Orbax async, or a thread "
    "that writes a copy",
)

STARTUP_SHARE = Threshold(
    0.05,
    "share",
    "of the start-up and the wall time",
    "the step at which XProf calls a job moderately input bound",
)


def slow_startup(measures: Measures) -> Said:
    """What a change would shorten takes much of the start: listing files, reading data, making a
    cache, importing from slow files, starting workers (also anew with each pass), the first batch.
    The largest is reported, with its own gain.  Loading a checkpoint has a rule of its own;
    compiling is no I/O."""
    training = measures.training
    whole_s = (training.startup_s or 0.0) + (training.wall_s or 0.0)
    causes = startup.causes(measures)
    gain_s = sum(cause.gain_s for cause in causes)
    if not causes or gain_s <= STARTUP_SHARE.value * whole_s:
        parts = startup.largest(measures)
        says = f"first batch after {show(training.first_batch_s or 0.0, 's')}"
        return Fine(f"{says}; start-up: {parts}" if parts else says)
    cause = causes[0]
    others = startup.largest(measures, but=cause.part)
    return RuleResult(
        cause.gain_s,
        (*cause.evidence, *([f"the rest of the start-up: {others}"] if others else [])),
        tuple(Remedy(word, says) for word, says in cause.remedies),
        cause.shown,
        whole_s,
    )


def checkpoint_blocks(measures: Measures) -> Said:
    """The step loop stands still while a checkpoint is saved."""
    block_s = measures.training.checkpoint_block_s or 0.0
    saves = [save for save in measures.checkpoints if save.blocked_s and save.is_good]
    failed = sum(bool(save.blocked_s) and not save.is_good for save in measures.checkpoints)
    if not saves:
        says = "no checkpoint stops the steps" if not failed else "only saves that failed did"
        return Fine(says, applies=bool(failed))
    mean_s = sum(save.duration_s for save in saves) / len(saves)
    size = sum(save.written_bytes for save in saves) / len(saves)
    in_calls = measures.checkpoint_storage_s / block_s if block_s else 0.0
    speed = f" at {show(size / mean_s, 'B/s')}" if size and mean_s else ""
    bytes_each = f", {show(size, 'B')} each" if size else ""  # 0: no write was recorded
    return RuleResult(
        block_s,
        (
            f"{count(len(saves), 'save')} of {show(mean_s, 's')}{bytes_each}{speed}",
            f"{per_cent(in_calls)} of it in file calls",
            *([f"the time of {count(failed, 'failed save')} is in it"] if failed else []),
            *(f"with files on the fast tier {tier.tier} already" for tier in measures.burst),
        ),
        (
            *_saved_otherwise(measures, BURST),
            ASYNC_SAVE,
            Remedy(
                "whatif",
                "save less often, or to a faster tier: measure what memory would take, then a disk",
                f"penstock ceiling /dev/shm --write --keep {RUN}",
            ),
        ),
        "checkpoints",
    )


def _saved_otherwise(measures: Measures, burst: Remedy) -> tuple[Remedy, ...]:
    """Return the remedies that the run does not use yet."""
    return (
        *(() if measures.burst else (burst,)),
        *(() if measures.checkpointers else (CHECKPOINTER,)),
    )


def slow_checkpoint_target(measures: Measures) -> Said:
    """Checkpoints are written at a fraction of what another mounted tier was measured to give."""
    saves = [
        save for save in measures.checkpoints if save.blocked_s and save.call_s and save.is_good
    ]
    if not saves:
        return Fine("no checkpoint stops the steps in file calls", applies=False)
    here = max(
        (row for row in measures.storage if row.path_class == "output"),
        key=lambda row: row.written_bytes,
        default=None,
    )
    others = [
        tier
        for tier in measures.ceilings
        if tier.op == "write" and (here is None or tier.mount != here.mount)
    ]
    if not others:
        return Unjudged(
            f"no other tier was measured; `penstock ceiling PATH --write --keep {RUN}` does it"
        )
    best = max(others, key=lambda tier: tier.bandwidth_bps)
    written_bytes = sum(s.written_bytes for s in saves)
    if not written_bytes:
        return Unjudged("what was written by calls is not known: mapped files, or another process")
    bandwidth_bps = written_bytes / sum(s.call_s for s in saves)
    says = (
        f"{show(bandwidth_bps, 'B/s')} in the calls; {best.mount} gives "
        f"{show(best.bandwidth_bps, 'B/s')}"
    )
    if bandwidth_bps >= FAR_BELOW.value * best.bandwidth_bps:
        return Fine(says)
    return RuleResult(
        measures.checkpoint_storage_s * (1 - bandwidth_bps / best.bandwidth_bps),
        (says,),
        _saved_otherwise(
            measures,
            replace(
                BURST,
                says=f"write checkpoints to a folder of your own on {best.mount} first; they are "
                "drained to their paths beside the training",
                command=f"penstock run --burst-buffer {shlex.quote(best.mount)} COMMAND",
            ),
        ),
        "checkpoints",
    )


SAME_BYTES = Threshold(
    0.99,
    "share",
    "of the largest has the smallest of a turn",
    "chosen: headers and names differ from rank to rank by less than a hundredth",
)


def duplicate_writes(measures: Measures) -> Said:
    """Several ranks write as many bytes to the same file at the same turn: all but one write what
    is there already.  Files of equal size with other names may be shards; contents are not
    compared."""
    turns = _turns(measures)
    same = [turn for turn in turns if _is_alike(turn)]
    if not turns:
        return Fine("one rank saves", applies=False)
    if not same:
        return Fine("ranks write checkpoints of different sizes")
    twice = [turn for turn in same if len({save.path for save in turn}) == 1 and turn[0].path]
    size = show(same[0][0].written_bytes, "B")
    if not twice:
        return Unjudged(
            f"{count(len(same[0]), 'rank')} write {size} each to files of their own: shards, or "
            "the same bytes; contents are not compared"
        )
    extra = sum(sum(s.written_bytes for s in turn[1:]) for turn in twice)
    block_s = sum(sum(s.duration_s for s in turn if s.blocks) for turn in twice)
    mains = max(1, measures.training.mains)
    return RuleResult(
        block_s / mains * (1 - len(twice) / sum(len(turn) for turn in twice)),
        (
            f"{count(len(twice), 'save')} by {len(twice[0])} ranks to {twice[0][0].path}, as many "
            f"bytes each: {show(extra, 'B')} too many",
        ),
        (
            Remedy("code", "save on rank 0 only what all ranks hold, or each its own shard"),
            ASYNC_SAVE,
        ),
        "checkpoints",
    )


RESTORE_S = Threshold(
    30,
    "s",
    "of loading, a mean over ranks",
    "chosen: what is shorter is lost in the start of a job, which takes a scheduler minutes",
)
RESTORE_SHARE = Threshold(
    0.05,
    "share",
    "of the start-up and the wall time, and a shorter one is reported too",
    "as of a slow start-up (W4)",
)


def slow_restore(measures: Measures) -> Said:
    """Loading checkpoints takes long: until the weights were read, which of a mapped file is when
    they are put into the model, or page by page when they are first used."""
    loads = [load for load in measures.restores if not load.is_failed]
    training = measures.training
    mains = max(1, training.mains)
    load_s = sum(load.duration_s for load in loads) / mains
    if not loads:
        return Fine("no checkpoint was loaded", applies=False)
    whole_s = (training.startup_s or 0.0) + (training.wall_s or 0.0)
    # A mapped file is read without calls: the file size is the upper bound.
    bytes_read = sum(max(load.read_bytes, load.size_bytes or 0) for load in loads)
    n = max(1, sum(load.loads for load in loads))
    says = f"{count(n, 'load')}, {show(load_s, 's')}, {show(bytes_read, 'B')}"
    if load_s <= RESTORE_S.value and load_s < RESTORE_SHARE.value * whole_s:
        return Fine(says)
    row = max(loads, key=lambda load: load.duration_s)
    faulted_s = sum(load.faulted_s for load in loads) / mains
    return RuleResult(
        load_s,
        (
            f"{says} at {show(bytes_read / mains / load_s, 'B/s')}",
            *([f"largest file: {row.path}, {show(row.size_bytes, 'B')}"] if row.path else []),
            *(
                [f"{show(faulted_s, 's')} of it page faults after the load: the file is mapped"]
                if faulted_s >= WORTH * load_s
                else []
            ),
        ),
        (Remedy("job", "keep the newest checkpoint on this node's disk"), FASTER_TIER),
        "checkpoints",
        whole_s,
    )


def failed_saves(measures: Measures) -> Said:
    """Saves ended in an exception, were cut off with their process, or failed in the background
    after they had returned: they are no checkpoint, whatever lies at their path."""
    lines = failures.saves_that_failed(measures)
    if not lines:
        return Fine("no save failed", applies=bool(measures.checkpoints))
    numbers = [save.errno for save in failures.bad_saves(measures) if save.errno]
    cures = failures.cures(
        [
            *numbers,
            *(late_failure.errno for late_failure in measures.late_failures if late_failure.errno),
        ]
    )
    return RuleResult(
        None,
        lines,
        (*(Remedy("job", cure) for cure in cures), *_saved_otherwise(measures, VERIFY)),
        "checkpoints",
    )


VERIFY = Remedy(
    "save",
    "see which checkpoints of a folder are whole before one is restored",
    "penstock save verify FOLDER",
)


def _turns(measures: Measures) -> list[list[RecordedCheckpoint]]:
    """Return the n-th checkpoints of all ranks together, largest first, for each n."""
    mains = {row.process for row in measures.ranks}
    by_process: dict[int, list[RecordedCheckpoint]] = {}
    for save in measures.checkpoints:
        if save.process in mains and save.written_bytes:
            by_process.setdefault(save.process, []).append(save)
    if len(by_process) < 2:
        return []
    turns = zip(*by_process.values(), strict=False)
    return [sorted(turn, key=lambda save: -save.written_bytes) for turn in turns]


def _is_alike(turn: Sequence[RecordedCheckpoint]) -> bool:
    return (
        turn[-1].written_bytes >= SAME_BYTES.value * turn[0].written_bytes
        and len({save.files for save in turn}) == 1
    )
