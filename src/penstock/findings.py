"""Measures in, findings out: what the numbers mean, what to do about it, and what it would bring.

A rule is a function from measures to what it found, to why there is nothing to do, or to why it
cannot judge.  No rule changes anything, prints anything or knows another rule: what one says about
another is data (`suppresses`).

Gains are upper bounds: the seconds of the wall time in which the step loop was blocked by the
cause.  Time inside calls that nobody waited for is no gain.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from penstock import failures, startup
from penstock.measures import (
    STORAGE_PARTS,
    CallTimes,
    Checkpoint,
    Measures,
    MetadataCalls,
    Number,
    Rank,
    State,
    Storage,
    Worker,
)
from penstock.remedies import (
    FASTER_TIER,
    MANY_FILES,
    NAME_THE_TIER,
    ONCE,
    PACK,
    PROFILER,
    RUN,
    STAGE,
    Remedy,
    by_index,
    fewer_threads,
    for_metadata,
    for_small_reads,
    format_of,
    further_ahead,
    mapped_better,
    more_at_once,
    more_workers,
    once_a_pass,
    share_each,
)
from penstock.standing import still_of
from penstock.words import count, per_cent, show

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
    "describe_rules",
    "judge",
]

# Below this share of the wall time a finding is "checked and fine".  From reading what Drishti and
# WisIO say of real jobs: without such a limit the first of 248 reasons explained 7 ms.
WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found.

    gain: seconds that go at most if the cause goes; share: the same as a share of `of`.  Both are
    not measured where the finding is no wait.  shown: the report's table or picture that shows it.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    gain: Number
    share: Number
    remedies: tuple[Remedy, ...]
    shown: str = ""
    of: str = "the wall time"


@dataclass(frozen=True, slots=True)
class Check:
    """A rule without a finding: "fine", "suppressed" by another one, or "not judged", and why."""

    rule: str
    title: str
    state: str
    says: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings, failures first, then the largest gain; all checks, in the order of RULES."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """gain_s None: no wait.  of_s: what the share is of, where that is not the wall time."""

    gain_s: float | None
    evidence: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    shown: str = ""
    of_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Fine:
    says: str


@dataclass(frozen=True, slots=True)
class _Unjudged:
    says: str


_Said = _Found | _Fine | _Unjudged


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a rule compares with: what it is of, and why it is this number and no other."""

    value: float
    unit: str
    of: str
    because: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A judge of measures: its id and title, the numbers that it compares with, and the rules that
    it silences when it finds something.  of_calls judges a run without steps, in which nobody is
    known to have waited, by the time in calls; without it such a run is not judged."""

    rule: str
    title: str
    judges: Callable[[Measures], _Said]
    thresholds: tuple[Threshold, ...] = ()
    suppresses: tuple[str, ...] = ()
    of_calls: Callable[[Measures], _Said] | None = None


# --- what to do ----------------------------------------------------------------------------------

CHECKPOINTER = Remedy(
    "save",
    "save through penstock.save.Checkpointer: the steps stand still for a copy in memory only, "
    "and what counts as saved is whole",
)
# The program and its paths stay; the tier is on a fast disk of the node.
BURST = Remedy(
    "save",
    "write checkpoints to a fast disk first, and drain them to their paths beside the training; "
    f"the program stays as it is{NAME_THE_TIER}",
    "penstock run --burst-buffer fast COMMAND",
)
NOBODY_WAITED = "by the time in calls: without steps nobody is known to have waited for it"
MORE_CPUS = Remedy("job", "ask for more CPUs (Slurm: --cpus-per-task)")
MEASURE_CEILING = f"no ceiling was measured; `penstock ceiling {RUN}` does it"
ASYNC_SAVE = Remedy(
    "code",
    "save in the background: torch.distributed.checkpoint.async_save, Orbax async, or a thread "
    "that writes a copy",
)


# --- data: how it is read ------------------------------------------------------------------------

METADATA_PER_OPEN = Threshold(
    8,
    "count",
    "calls for each file opened",
    "Python's own `open(path).read()` makes four (open, fstat twice, close; a seek asks nobody and "
    "is not counted) and is no storm; chosen: twice that is what a careful loader may still ask",
)
BLOCKED_FILES = Threshold(
    16,
    "count",
    "files at most of which an open takes more than a second in the mean, and these opens are no "
    "storm",
    "chosen: pipes, whose open waits for the other program, are few; a slow server makes all slow",
)
METADATA_SHARE = Threshold(
    0.30,
    "share",
    "of the wait for storage",
    "chosen: WisIO and DFAnalyzer speak at 50 % of all time in I/O, waited for or not; of time "
    "that was waited for a third is worth a change",
)
SMALL_SHARE = Threshold(
    0.50,
    "share",
    "of the blocking reads' time",
    "as DFAnalyzer's `small_read_dominance`: below it larger reads would mend the smaller part",
)
SMALL_READ_BYTES = Threshold(
    256 << 10,
    "B",
    "a read, and it is small",
    "twice Linux's default read-ahead (`read_ahead_kb` 128): what is smaller is one or two "
    "requests to the device, and pays its latency, not its bandwidth. Drishti and DFAnalyzer say "
    "1 MiB, for parallel file systems",
)
FEW_SLOW = Threshold(
    0.02,
    "share",
    "of the small reads took longer than one from memory (10 µs, and copying at 10 GB/s), where it "
    "is not known how long their threads had no CPU",
    "where the kernel reads 128 KiB ahead of reads of 4 KiB, one in 32 waits; fewer slow ones may "
    "as well be reads from memory whose thread lost its CPU",
)
FAR_BELOW = Threshold(
    0.30,
    "share",
    "of the measured ceiling",
    "chosen: then three times as much could be moved at once, so bandwidth is not what is short",
)


def metadata_storm(measures: Measures) -> _Said:
    """Opening, examining and listing files takes much of the wait for storage, or many such calls
    are made for each file that is opened: of a loader, or of the training thread itself.  Few opens
    that take seconds wait for something else."""
    seen = measures.metadata
    told = _blocked_opens(seen)
    # Waits know calls of every class, blocked calls also those outside waits: the larger is all.
    in_steps_s = measures.data_blocking.get("metadata", 0.0)
    wait_s = max(measures.wait_s("metadata"), in_steps_s)
    whole_s = max(measures.data_storage_s, sum(measures.data_blocking.values()))
    if told and seen.time_s:
        wait_s *= 1 - min(1.0, seen.blocked_s / seen.time_s)
    share = wait_s / whole_s if whole_s else 0.0
    per_open = seen.calls / seen.opens if seen.opens else 0.0
    says = (
        f"{per_cent(share)} of the wait for storage, {show(per_open, 'count')} calls per open{told}"
    )
    if share < METADATA_SHARE.value and per_open <= METADATA_PER_OPEN.value:
        return _Fine(says)
    mean_s = seen.time_s / seen.calls if seen.calls else None
    failed = f", {seen.failed:,} of them in vain" if seen.failed else ""
    return _Found(
        wait_s,
        (
            f"{seen.calls:,} calls on {count(seen.files, 'data file')}, "
            f"{show(per_open, 'count')} per open, {show(mean_s, 's')} each{failed}",
            f"{per_cent(share)} of the wait for storage",
            *_worst_directory(measures),
        ),
        (*for_metadata(measures), FASTER_TIER),
        "directories",
    )


def _blocked_opens(seen: MetadataCalls | CallTimes) -> str:
    """What is said of few opens that take seconds; "" where there are none, or too many."""
    if not 0 < seen.blocked_files <= BLOCKED_FILES.value:
        return ""
    each_s = seen.blocked_s / max(1, seen.blocked_opens)
    return (
        f"; not counted: {count(seen.blocked_opens, 'open')} of "
        f"{count(seen.blocked_files, 'file')} that took {show(each_s, 's')} each, as of a pipe"
    )


def small_reads(measures: Measures) -> _Said:
    """Most of the time of blocking reads is in small ones that did not come from memory, while the
    tier gives little of the bandwidth that was measured for it."""
    reads = measures.blocking_reads
    if not reads.blocking_s and not reads.calls:
        return _Fine("no read of data blocked the step loop")
    moving_s = reads.blocking_s - reads.empty_s  # empty reads are E1's
    share = reads.small_s / moving_s if moving_s > 0 else 0.0
    slow = f"{reads.slow_calls:,} of {count(reads.small_calls, 'small read')}"
    slow += f" in {count(reads.files, 'file')} took longer than from memory"
    if not reads.slow_calls or (
        reads.slow_calls < FEW_SLOW.value * reads.small_calls and not _delay_is_known(measures)
    ):
        return _Fine(slow if reads.small_calls else "no small read blocked the step loop")
    if share < SMALL_SHARE.value:
        return _Fine(f"{per_cent(share)} of the blocking reads' time is in reads under 256 KiB")
    # Where it is known that the readers had a CPU, what they waited for was no copy from memory,
    # whatever the kernel says of devices: a file system may be slow of itself.
    if _from_memory(measures) and not _delay_is_known(measures):
        return _Fine(f"{slow}, but most bytes came from memory")
    used_bps, ceiling_bps = _waiting_bandwidth(measures), _read_ceiling(measures)
    limit = f" of {show(ceiling_bps, 'B/s')} measured" if ceiling_bps else ""
    used = f", {show(used_bps, 'B/s')} while waiting{limit}" if used_bps else ""
    if ceiling_bps and used_bps and used_bps >= FAR_BELOW.value * ceiling_bps:
        return _Fine(f"reads are small, but {show(used_bps, 'B/s')}{limit}")
    each_s = reads.small_all_s / reads.slow_calls
    mean = reads.read_bytes / reads.calls if reads.calls else None
    return _Found(
        reads.small_s,
        (
            f"{slow}, {show(each_s, 's')} of waiting each",
            f"mean read {show(mean, 'B')}{used}",
        ),
        (
            more_at_once(measures),
            *for_small_reads(measures, reads.files),
            STAGE,
            FASTER_TIER,
        ),
        "latencies",
    )


def _delay_is_known(measures: Measures) -> bool:
    """Time without a CPU was measured in fetches, and so is none of their calls' time."""
    return measures.page_faults.fetches > 0 and not measures.recording.fetches_without_delay


NEAR = Threshold(
    0.80,
    "share",
    "of the measured ceiling",
    "as DFAnalyzer's `bw_saturation`; what is left is less than two measurements of a disk differ",
)


ABOVE = Threshold(
    1.25,
    "x",
    "the measured ceiling, and bytes came from memory too",
    "two measurements of a disk differ by less",
)


def bandwidth_bound(measures: Measures) -> _Said:
    """While the step loop waits, data is read nearly as fast as the tier was measured to give; what
    is read faster than that comes from memory."""
    ceiling_bps, used_bps = _read_ceiling(measures), _waiting_bandwidth(measures)
    if not used_bps:
        return _Fine("the step loop hardly waits for reads")
    if not ceiling_bps:
        return _Unjudged(MEASURE_CEILING)
    says = f"{show(used_bps, 'B/s')} while waiting, {show(ceiling_bps, 'B/s')} measured"
    if used_bps < NEAR.value * ceiling_bps:
        return _Fine(f"{says}: {per_cent(used_bps / ceiling_bps)}")
    if used_bps > ABOVE.value * ceiling_bps or _from_memory(measures):
        return _Fine(f"{says}: most bytes came from memory")
    return _Found(
        measures.wait_s("read"),
        (f"{says}: {per_cent(used_bps / ceiling_bps)} of what the tier gives",),
        (
            STAGE,
            Remedy("code", "fewer bytes a sample: compress, crop, or lower the resolution"),
            FASTER_TIER,
        ),
        "bandwidth",
    )


# Types of file systems whose reads the kernel counts for the program that made them.
COUNTED = {
    "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "lustre", "nfs", "nfs4", "overlay",
    "squashfs", "vfat", "xfs",
}  # fmt: skip
FROM_DEVICES = 0.5  # of the bytes read at least came from devices, where they did not from memory


def _from_memory(measures: Measures) -> bool:
    """The kernel's account says that less than half of what was read came from devices.  False
    where there is no such account."""
    kinds = {row.kind for row in measures.storage if row.read_bytes}
    given = measures.devices.job_read_bytes
    if not kinds or not kinds <= COUNTED or given is None:
        return False
    return given < FROM_DEVICES * measures.devices.asked_bytes


RANDOM_SHARE = Threshold(
    0.20,
    "share",
    "of the reads of files of 4 MiB and more, reads of 1 MiB and more excepted: reading as much "
    "takes a disk that seeks about as long as the seek",
    "as Drishti's P11; but the first read of a file and one at offset 0 are not random here, as "
    "they are in the counters of Darshan that Drishti reads",
)


def random_reads(measures: Measures) -> _Said:
    """Many reads of large files neither go on where the one before ended nor lie in what the kernel
    has read ahead."""
    seen = measures.pattern
    if not seen.reads:
        return _Fine("no large data file was read")
    share = seen.random / seen.reads
    says = f"{per_cent(share)} of {count(seen.reads, 'read')} in {count(seen.files, 'large file')}"
    if share <= RANDOM_SHARE.value:
        return _Fine(f"{says} were random")
    mean = seen.random_bytes / seen.random
    return _Found(
        seen.random_blocking_s,
        (
            f"{says} were random, {show(mean, 'B')} in the mean",
            f"{show(seen.random_s / seen.random, 's')} each; device bytes per byte requested: "
            + _amplification(measures),
        ),
        (
            *by_index(measures, seen.path),
            Remedy("code", "shuffle blocks of neighbouring records instead of single ones"),
            Remedy(
                "whatif",
                "measure what telling the kernel would bring",
                f"penstock whatif {RUN} --readahead random",
            ),
            STAGE,
            FASTER_TIER,
        ),
        "files",
    )


def _amplification(measures: Measures) -> str:
    amplified = measures.devices.read_amplification
    return amplified.state if amplified.value is None else show(amplified.value, "x")


CLIFF = Threshold(
    2.0,
    "x",
    "as long, a step's wait and the reading of a byte",
    "chosen: shuffling moves a mean over a tenth of the run by less. Bae et al. (HPCS 2019) saw "
    "such steps where an LMDB data set and the page cache met on Nurion",
)
OF_MEMORY = Threshold(
    0.50,
    "share",
    "of the memory holds the data set, and there is no cliff",
    "chosen: the other half is left to the job itself",
)
LEAST_PIECES = 6  # of 64: a tenth of the wall time on each side


def cache_cliff(measures: Measures) -> _Said:
    """From some moment on a step waits longer than before and a byte takes longer to read: what was
    served from memory now comes from the device.  A data set that fits the memory cannot do
    that."""
    pieces = [piece for piece in measures.drift if piece.steps]
    if len(pieces) < 2 * LEAST_PIECES:
        return _Fine("too few steps for a change to show")
    data, memory = measures.reading, measures.machine.memory_bytes
    at, before, after = _cliff([(piece.waits_s, piece.steps) for piece in pieces])
    head, tail = pieces[:at], pieces[at:]
    slower = _slower([(piece.read_s, piece.read_bytes) for piece in pieces], at)
    if after < CLIFF.value * before or slower < CLIFF.value:
        return _Fine(
            f"a step waits {show(before, 's')}, after the largest change {show(after, 's')}"
        )
    if not memory:
        return _Unjudged(
            "whether the data fits the memory is open: the memory's size was not noted"
        )
    if data.size_bytes < OF_MEMORY.value * memory:
        return _Fine(f"the data, {show(data.size_bytes, 'B')}, fits the memory")
    mains = max(1, measures.training.mains)
    gain_s = (sum(p.waits_s for p in tail) - before * sum(p.steps for p in tail)) / mains
    first = 1 + sum(piece.steps for piece in head) // mains
    if _from_memory(measures):
        return _Fine("a step waits longer from some moment on, but most bytes came from memory")
    told = f"{show(data.size_bytes, 'B')} of data on {show(memory, 'B')} of memory"
    return _Found(
        max(0.0, gain_s),
        (
            f"from step {first:,} on a step waits {show(after, 's')}, before {show(before, 's')}",
            f"reading a byte takes {show(slower, 'x')} as long; {told}",
        ),
        (
            Remedy("job", "more memory, fewer bytes a sample, or each node its own share of it"),
            STAGE,
            FASTER_TIER,
        ),
        "steps",
    )


# Types of file systems whose bytes come over a network, as /proc/self/mountinfo names them.
REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.goofys", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs",
    "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "wekafs",
}  # fmt: skip
REREAD = Threshold(
    1.5,
    "x",
    "the size of the data",
    "chosen: beyond the first pass, which a copy would need too, and more than a validation set "
    "that is read again",
)


def reread_remote(measures: Measures) -> _Said:
    """Data on a file system that is reached over a network (by its type in /proc/self/mountinfo)
    was read again and again: a copy on this node would have been read instead."""
    known = [row for row in measures.storage if row.path_class == "data"]
    if known and all(row.kind is None for row in known):
        return _Unjudged("which file systems are mounted was not noted")
    remote = [row for row in known if row.kind in REMOTE]
    if not remote:
        return _Fine("no data was read over a network")
    row = max(remote, key=lambda row: row.read_bytes)
    hosts = max(1, measures.recording.hosts)  # a copy would be needed on each
    times = row.read_bytes / row.size_bytes / hosts if row.size_bytes else 0.0
    each = f" by each of {hosts} hosts" if hosts > 1 else ""
    if times < REREAD.value:
        return _Fine(f"read {show(times, 'x')}{each} from {row.kind}")
    if _from_memory(measures):
        return _Fine(f"read {show(times, 'x')}{each}, but most bytes came from memory")
    share = row.read_bytes / sum(one.read_bytes for one in known)
    return _Found(
        measures.data_storage_s * share * (1 - 1 / times),
        (
            f"{show(row.size_bytes, 'B')} on {row.mount} ({row.kind}) was read "
            f"{show(times, 'x')}{each}: {show(row.read_bytes, 'B')}",
        ),
        (
            replace(
                STAGE,
                says=f"read {show(row.size_bytes, 'B')} from copies on this node's disk"
                f"{NAME_THE_TIER}",
            ),
            FASTER_TIER,
        ),
        "storage",
    )


ALL_OF_IT = Threshold(
    0.9,
    "share",
    "of the data set's bytes was read by each rank in each pass, a mean over ranks",
    "chosen: with a share each, two ranks read half of it in a pass; a tenth may be held back for "
    "validation",
)


def each_reads_all(measures: Measures) -> _Said:
    """Each rank of a job reads the whole data set in each pass, where a share of it each would do:
    the loader does not know of the others, or the container can only be read from its begin."""
    ranks = measures.job.ranks
    if ranks < 2:
        return _Fine("one rank: none to share with")
    if measures.recording.counters_only:
        return _Unjudged("which rank read what is not known")
    passes = max((row.epoch for row in measures.epochs), default=0)
    if not passes:
        return _Unjudged("no pass of a loader was seen: how often the data should be read is open")
    size_bytes = sum(row.size_bytes or 0 for row in measures.sharing)
    read_bytes = sum(row.read_bytes for row in measures.sharing)
    if not size_bytes:
        return _Fine("no rank read a data file")
    share = read_bytes / size_bytes / ranks / passes
    says = f"a rank reads {per_cent(share)} of the data set's {show(size_bytes, 'B')} in a pass"
    if share < ALL_OF_IT.value:
        return _Fine(says)
    return _Found(
        measures.data_storage_s * (1 - 1 / ranks),
        (
            f"{says}: {count(ranks, 'rank')} read {show(read_bytes, 'B')} in "
            f"{count(passes, 'pass')}",
            f"a share each would be {show(size_bytes * passes, 'B')} for all of them together",
        ),
        share_each(measures),
        "sharing",
    )


ALL_BY_WORKERS = Threshold(
    0.9,
    "share",
    "of the bytes of the files that a pass's workers read is in files that each of them read whole",
    "chosen: with a share of the files each, none is read whole by two workers; some may be an "
    "index that all need",
)


def each_worker_reads_all(measures: Measures) -> _Said:
    """Each worker of a DataLoader reads all files of an IterableDataset: it does not ask which
    worker it is (torch.utils.data.get_worker_info), so each item comes once from each worker, or
    each worker reads the items of the others too and drops them."""
    if measures.recording.counters_only:
        return _Unjudged("which worker read what is not known")
    seen = next((row for row in measures.worker_sharing if row.workers and row.files), None)
    if seen is None or not seen.workers or not seen.size_bytes:
        return _Fine("no IterableDataset was read to its end by several workers")
    files = count(seen.whole_files, "file")
    says = (
        f"of {count(seen.files, 'file')} a pass reads, each of {seen.workers} workers reads {files}"
    )
    if seen.whole_bytes < ALL_BY_WORKERS.value * seen.size_bytes:
        return _Fine(says)
    gain_s = measures.data_storage_s * (1 - 1 / seen.workers)
    wall_s = measures.training.wall_s or 0.0
    return _Found(
        gain_s if gain_s >= WORTH * wall_s > 0 else None,  # it is wrong where it costs nothing, too
        (
            says,
            f"{show(seen.read_bytes, 'B')} were read of {show(seen.size_bytes, 'B')} in "
            f"{count(seen.passes or 1, 'pass')}: each item comes {seen.workers} times, unless the "
            "data set drops those of other workers",
        ),
        (
            Remedy(
                "loader",
                "give each worker its share: info = torch.utils.data.get_worker_info() in "
                "__iter__, then files[info.id::info.num_workers]",
            ),
        ),
    )


AGAIN = Threshold(
    3.0,
    "x",
    "its size does one process read of a file in one epoch",
    "chosen: once to look at all of it first, once in the epoch; three times is a way of reading",
)


def same_bytes_again(measures: Measures) -> _Said:
    """One process reads the same bytes of a file several times in one epoch: an archive that is
    scanned for each sample, a chunk that is read for each sample in it, a seek in a compressed
    file.  From memory this is CPU time.  Without a known loader the number of epochs is not known:
    then only a file that is read several times in each step is a finding."""
    rows = measures.rereads
    if not rows and "torch" not in measures.loaders:
        return _read_again(measures)
    if not rows:
        return _Fine("no process read a file's bytes several times in an epoch")
    row = max(rows, key=lambda row: (row.blocking_s, row.read_bytes - row.size_bytes))
    kind = format_of(row.path or "")
    gain_s = sum(one.blocking_s * (1 - 1 / one.times) for one in rows)
    if kind.is_decoded:  # what is read again is decoded again
        again = sum(one.read_bytes for one in rows)
        share = again / max(again, measures.reading.read_bytes)
        gain_s += measures.wait_s("cpu", "cached", "not scheduled") * share * (1 - 1 / row.times)
    more = f" and {count(len(rows) - 1, 'other file')}" if len(rows) > 1 else ""
    # The table of files has this number, too: of all epochs and processes.
    whole = max(
        (one.read_times or 0.0 for one in measures.files if one.path == row.path), default=0
    )
    in_all = f", {show(whole, 'x')} in all" if show(whole, "x") != show(row.times, "x") else ""
    return _Found(
        gain_s,
        (
            f"{row.path}{more}: {show(row.size_bytes, 'B')}, read {show(row.times, 'x')} in an "
            f"epoch by one process{in_all if whole else ''}, {show(row.mean_bytes, 'B')} a read",
            f"opened {count(row.opens, 'time')} in {count(row.passes, 'epoch')}; "
            f"{show(sum(one.read_bytes for one in rows), 'B')} read of "
            f"{count(len(rows), 'such file')}",
        ),
        (*once_a_pass(measures, row.path or "", row.size_bytes), PROFILER)
        if not row.blocking_s
        else once_a_pass(measures, row.path or "", row.size_bytes),
        "files",
    )


def _read_again(measures: Measures) -> _Said:
    """Without a loader the number of epochs is not known, but an epoch has a step at least: a file
    that is read several times per step and process is read so often in each epoch."""
    named = [row for row in measures.files if row.path]
    rows = [row for row in named if (row.read_times or 0.0) >= AGAIN.value]
    if not rows:
        others = any(row.path is None for row in measures.files)
        of_those = f" of the {count(len(named), 'file')} with most time in calls" if others else ""
        return _Fine(f"none{of_those} was read {show(AGAIN.value, 'x')} its size")
    row = max(rows, key=lambda row: (row.blocking_s or 0.0, row.read_bytes - (row.size_bytes or 0)))
    times = row.read_times or 0.0
    says = (
        f"{row.path}: {show(row.size_bytes, 'B')}, read {show(times, 'x')}: "
        f"{show(row.read_bytes, 'B')}, {count(row.opens, 'open')}"
    )
    steps = measures.training.steps // max(1, measures.training.mains)
    turns = steps * max(1, measures.recording.processes)
    least = times / turns if turns else 0.0
    if least < AGAIN.value:
        of_steps = f" in {count(steps, 'step')}" if steps else ""
        return _Unjudged(f"{says}{of_steps}; how many epochs that is, no known loader tells")
    return _Found(
        (row.blocking_s or 0.0) * (1 - 1 / least),
        (f"{says}; {show(least, 'x')} at least in each step of each process",),
        once_a_pass(measures, row.path or "", row.size_bytes or 0),
        "files",
    )


IN_FAULTS = Threshold(
    0.02,
    "share",
    "of the run, all threads together, and the faults of a run without steps are worth telling",
    "as for every finding: less is no change worth making",
)


LONGEST_FAULT = Threshold(
    0.1,
    "s",
    "a page fault at most, where single ones were not timed",
    "chosen: ten seeks of a disk; a thread that stood still longer waited for something else",
)


def mapped_files(measures: Measures) -> _Said:
    """Data files are mapped into memory, and the step loop stood still at pages that were not in
    memory: reading through a mapping makes no call.  Each page fault is sampled with its file
    where the kernel allows it; else major faults of fetches are all that is known."""
    known = measures.recording
    if measures.faults.is_measured:
        return _faulted(measures, measures.faults.blocking_s)
    if not known.mapped_files:
        return _Fine("no data file is mapped into memory")
    return _faulted_fetches(measures)


def _faulted(measures: Measures, gain_s: float) -> _Said:
    """By sampled faults: the file, how many, how long, and what reads it better."""
    seen = measures.faults
    files = [row for row in measures.fault_files if row.path_class == "data" and row.path]
    if not files:
        return _Fine("no data file is mapped into memory")
    n = seen.major + seen.waited
    if not n:
        return _Fine(f"no page of {count(len(files), 'mapped data file')} had to be waited for")
    row = max(files, key=lambda row: (row.blocking_s, row.waited_s))
    waits = row.major + row.waited
    return _Found(
        gain_s,
        (
            f"{row.path}: {count(row.major, 'major page fault')} and {row.waited:,} that waited "
            f"for read-ahead, {show(row.waited_s, 's')} in them, "
            f"{show(row.waited_s / max(1, waits), 's')} each, the longest {show(row.max_s, 's')}",
            f"{count(n, 'fault')} of {count(len(files), 'mapped data file')} "
            f"took {show(seen.waited_s, 's')}, all threads together",
        ),
        mapped_better(row.path or ""),
        "fault_files",
    )


def _calls_faulted(measures: Measures) -> _Said:
    """The same by the time in faults: without steps nobody is known to have waited for it."""
    seen, life_s = measures.faults, measures.recording.life_s or 0.0
    if not seen.is_measured:
        return _Unjudged(seen.quality[1])
    if seen.waited_s < IN_FAULTS.value * life_s:
        return _Fine(f"{show(seen.waited_s, 's')} in page faults of data files")
    said = _faulted(measures, seen.waited_s)
    if not isinstance(said, _Found):
        return said
    return replace(said, evidence=(*said.evidence, NOBODY_WAITED), of_s=life_s)


def _faulted_fetches(measures: Measures) -> _Said:
    """By what the system counts of threads that fetch: how many, of no file."""
    known, seen = measures.recording, measures.page_faults
    mapped = count(known.mapped_files, "data file")
    if not seen.fetches:
        return _Unjudged(f"{mapped} mapped into memory, and page faults were not counted")
    if not seen.faults:
        return _Fine(f"{mapped} mapped into memory, and no fetch stopped at a page")
    most_s = seen.faults * LONGEST_FAULT.value / max(1, measures.training.mains)
    gain_s = min(seen.blocked_s, most_s)
    return _Found(
        gain_s,
        (
            f"{mapped} mapped ({show(known.mapped_bytes, 'B')}); {count(seen.faults, 'page')} not "
            f"in memory stopped {count(seen.faulted, 'fetch')} of {seen.fetches:,}",
            f"at most {show(gain_s, 's')}: these fetches were in no call and on no "
            "processor; which file it was is not known",
        ),
        _mapped_remedies(measures),
        "epochs",
    )


def _mapped_remedies(measures: Measures) -> tuple[Remedy, ...]:
    """For the largest file that no call reads: which was mapped is not known."""
    rows = [row for row in measures.files if row.path and row.path_class == "data"]
    unread = [row for row in rows if row.read_bytes < (row.size_bytes or 0)]
    row = max(unread or rows, key=lambda row: row.size_bytes or 0, default=None)
    return mapped_better(row.path or "" if row else "")


STRAGGLES = Threshold(
    1.5,
    "x",
    "the median of the others",
    "as DFAnalyzer's rule for ranks; the slow one is left out of the median, as of two it would be "
    "half of it",
)
LEAST_FETCHES = Threshold(
    4,
    "count",
    "batches of a worker after its first, which may open the data set",
    "chosen: the mean of fewer says how one file was",
)


def straggler(measures: Measures) -> _Said:
    """One worker takes longer for a batch than the others, or one rank waits longer for data."""
    slow = [said for said in (_slow_worker(measures), _slow_rank(measures)) if said]
    if slow:
        return max(slow, key=lambda said: said.gain_s or 0.0)
    if len(measures.workers) < 2 and len(measures.ranks) < 2:
        return _Fine("one worker, one rank: none to compare")
    return _Fine("workers and ranks are balanced")


TAIL = Threshold(
    10,
    "x",
    "the median of reads of like size (of one octave, and not from memory), their 99th percentile",
    "as DFAnalyzer's `read_contention` (mean to least): a busy disk makes all reads slower, a "
    "queue, a retry or a lock makes some of them ten times as slow",
)
TAIL_SHARE = Threshold(
    0.30,
    "share",
    "of the blocking reads' time is what some took longer than the median of like reads",
    "chosen: a tail that few waited for is no finding",
)
FEW_IN_TAIL = Threshold(
    0.10,
    "share",
    "of the reads of like size at most take more than ten medians",
    "chosen: more are another kind of read, such as of files that are not in memory yet",
)
LEAST_ALIKE = Threshold(
    20, "count", "reads of like size at least", "chosen: the median of fewer says how one file was"
)


def tail_latency(measures: Measures) -> _Said:
    """Few reads take many times as long as most reads of like size, and the step loop waits for
    these few."""
    reads = measures.blocking_reads
    if not reads.blocking_s:
        return _Fine("no read of data blocked the step loop")
    if not reads.tail_bytes or not reads.tail_p50_s or not reads.tail_p99_s:
        return _Fine("reads of like size take about as long")
    ratio, share = reads.tail_p99_s / reads.tail_p50_s, reads.tail_s / reads.blocking_s
    sizes = f"reads of {show(reads.tail_bytes, 'B')} to {show(2 * reads.tail_bytes, 'B')}"
    says = f"{sizes}: 99th percentile {show(ratio, 'x')} the median"
    if ratio < TAIL.value or share < TAIL_SHARE.value:
        return _Fine(says)
    if _from_memory(measures):
        return _Fine(f"{says}, but most bytes came from memory")
    if measures.wait_share("not scheduled") >= QUEUE_SHARE.value:
        return _Unjudged(f"{says}, but fetches wait for a processor: W3")
    return _Found(
        reads.tail_s,
        (
            f"{says}: {show(reads.tail_p99_s, 's')} and {show(reads.tail_p50_s, 's')}",
            f"what few took beyond the median: {per_cent(share)} of the blocking reads' time",
        ),
        (
            further_ahead(measures),
            FASTER_TIER,
        ),
        "latencies",
    )


EMPTY_SHARE = Threshold(
    0.30,
    "share",
    "of the reads",
    "half of them move nothing where a file is read by one call and a second asks for more, as "
    "tf-Darshan saw (128 thousand opens, 256 thousand reads); a third where it takes two calls",
)


EMPTY_PER_OPEN = Threshold(
    2,
    "count",
    "empty reads for each open of a data file at most",
    "a file that is read to its end takes one, or two where libraries read it in turns; more ask "
    "whether a file has grown, as a follower of a log does, and no size is known beforehand",
)


def empty_reads(measures: Measures) -> _Said:
    """Many reads move nothing: they ask at the end of a file whether there is more, one system call
    a file for nothing.  Asking the same open file again and again is waiting for it to grow."""
    data, reads = measures.reading, measures.blocking_reads
    if data.empty_reads is None:
        return _Unjudged("the imported counters do not say which reads moved nothing")
    share = data.empty_reads / data.reads if data.reads else 0.0
    says = f"{per_cent(share)} of {count(data.reads, 'read')} are empty"
    if share < EMPTY_SHARE.value:
        return _Fine(says)
    if data.empty_reads > EMPTY_PER_OPEN.value * max(data.opens, data.files):
        opens = f"{count(data.opens, 'open')} of data files"
        return _Fine(f"{says}, with {opens}: they wait for files to grow")
    return _Found(
        reads.empty_s,
        (f"{says}: one system call a file for nothing",),
        (
            Remedy(
                "code",
                "read a known number of bytes: os.pread(fd, size, 0), or buffering=0 and one read",
            ),
        ),
        "operations",
    )


CROWDED = Threshold(
    0.85,
    "share",
    "of the best bandwidth of this run",
    "tf-Darshan's case of large files on a disk fell to 82 % (94 to 77 MB/s, 16 threads for one)",
)
CROWD = Threshold(
    2, "x", "as many reads under way as at the best", "chosen: one more is a neighbour's noise"
)
LEAST_SLOTS = Threshold(
    5,
    "count",
    "stretches of 100 ms and more with that many reads",
    "chosen: fewer are a moment, not a way of reading",
)


def too_many_readers(measures: Measures) -> _Said:
    """With more large reads under way, data is read more slowly: the device seeks between them."""
    levels = [row for row in measures.concurrency if row.slots >= LEAST_SLOTS.value]
    if len(levels) < 2:
        return _Fine("the number of reads under way hardly changed")
    best, most = max(levels, key=lambda row: row.bandwidth_bps), levels[-1]
    says = (
        f"{show(most.bandwidth_bps, 'B/s')} with {count(most.level, 'read')} under way, "
        f"{show(best.bandwidth_bps, 'B/s')} with {best.level}"
    )
    is_crowd = most.level >= CROWD.value * best.level
    falls = is_crowd and most.bandwidth_bps < CROWDED.value * best.bandwidth_bps
    # Small reads cost calls when there are more of them, not seeks.
    if not falls or min(best.read_bytes, most.read_bytes) < SMALL_READ_BYTES.value:
        return _Fine(says)
    if _from_memory(measures):
        return _Fine(f"{says}: most bytes came from memory")
    if measures.wait_share("not scheduled") >= QUEUE_SHARE.value:
        return _Unjudged(f"{says}, but fetches wait for a processor: W3")
    kept = most.bandwidth_bps / best.bandwidth_bps
    return _Found(
        measures.wait_s("read") * (1 - kept),
        (says, f"reads of {show(most.read_bytes, 'B')} in the mean"),
        (
            Remedy("loader", f"{count(best.level, 'reader')} at once, in larger pieces"),
            Remedy(
                "whatif",
                "measure it",
                f"penstock whatif {RUN} --threads {best.level}",
            ),
        ),
        "bandwidth",
    )


# --- workers -------------------------------------------------------------------------------------

BUSY = Threshold(
    0.90,
    "share",
    "of the data wait all workers are in fetches",
    "chosen: what is left are queues and hand-overs, which more workers do not shorten",
)
CPU_SHARE = Threshold(
    0.50,
    "share",
    "of the data wait that is not for a CPU",
    "chosen: then a faster disk would end less than half of it",
)
QUEUE_SHARE = Threshold(
    0.20,
    "share",
    "of the data wait",
    "chosen: every fifth second of a worker that could go on; the step at which XProf says highly",
)


MOSTLY = Threshold(
    0.50,
    "share",
    "of the data wait is blocked, on storage or elsewhere, and fewer workers are no remedy",
    "chosen: then most of the wait is for something that one worker does not have from another",
)


def too_few_workers(measures: Measures) -> _Said:
    """While the step loop waits all workers fetch, or it fetches itself, and there is a CPU for
    another worker."""
    training = measures.training
    wait_s = measures.wait_s(
        "read", "write", "metadata", "cpu", "cached", "blocked", "not scheduled"
    )
    left_s = (training.wall_s or 0.0) - (training.data_wait_s or 0.0)
    mains = max(1, training.mains)
    workers, cpus = measures.workers, measures.machine.cpus
    each = _workers(measures)
    on_cpu_s = measures.wait_s("cpu", "cached")
    fetch_s = sum(row.fetch_s for row in workers) / mains if workers else wait_s
    if not wait_s:
        return _Fine("the step loop does not wait for fetches")
    if measures.training.pooled_waits:
        return _Fine("the loader does not say who makes a batch")
    if training.inferred_waits and not workers:
        return _Unjudged("data waits in no known loader: how many fetch at once is not known")
    # Whoever uses the CPUs: another worker would wait for one too.
    if measures.wait_share("not scheduled") >= QUEUE_SHARE.value:
        return _Fine("fetches wait for a CPU already: there is none for another worker")
    waited_s = sum(row.waited_s for row in workers)
    busy = sum(row.busy_s for row in workers) / waited_s if waited_s else 1.0
    says = (
        f"{count(each, 'worker')}, busy {per_cent(busy)} of the wait" if workers else "no workers"
    )
    if busy < BUSY.value:
        if per_cent(busy) == per_cent(BUSY.value):  # 89.96 % is no 90 %
            says = says.replace(per_cent(busy), f"less than {per_cent(busy)}")
        return _Fine(says)
    cpu_s = sum(row.cpu_s or 0.0 for row in workers) / mains if workers else on_cpu_s
    # Computing takes a CPU of its own; what a worker needs is its time on one.
    of_one = min(1.0, cpu_s / fetch_s) if fetch_s else 0.0
    room = None if cpus is None else int((cpus / mains - 1) / max(of_one, 0.05))
    wanted = -(-fetch_s // max(left_s, 1e-9)) + 1
    wanted = int(min(wanted, 64 if room is None else room))
    if wanted <= each:
        return _Fine(f"{says}, and {_cpus(cpus or 0.0)} leave no room for more")
    told = "how many CPUs there are was not noted" if cpus is None else ""
    return _Found(
        max(0.0, wait_s - max(0.0, fetch_s / wanted - left_s)),
        tuple(
            filter(
                None,
                (
                    f"{says}; fetching takes {show(fetch_s, 's')}, the steps {show(left_s, 's')}",
                    f"a fetch is {per_cent(of_one)} on a CPU"
                    + (f", {_cpus(cpus)}" if cpus else ""),
                    told,
                ),
            )
        ),
        (more_workers(measures, wanted),),
        "epochs",
    )


def decode_bound(measures: Measures) -> _Said:
    """Most of the data wait is workers' time on a CPU, outside file calls: decoding, augmenting.  A
    faster disk would not help."""
    share, queued = measures.wait_share("cpu"), measures.wait_share("not scheduled")
    says = f"{per_cent(share)} of the data wait is on a CPU, outside file calls"
    if share < CPU_SHARE.value * (1 - queued) or not share:  # to wait for one is to wait for it
        return _Fine(says)
    return _Found(measures.wait_s("cpu"), (says,), (PROFILER,), "epochs")


def oversubscribed(measures: Measures) -> _Said:
    """For much of the data wait the threads that make batches are ready to run and have no CPU."""
    share = measures.wait_share("not scheduled")
    says = f"for {per_cent(share)} of the data wait fetches were ready to run and had no CPU"
    if share < QUEUE_SHARE.value:
        return _Fine(says)
    told, remedy = _short_of_cpus(measures)
    return _Found(measures.wait_s("not scheduled"), (says, told), (remedy,), "processes")


def _short_of_cpus(measures: Measures) -> tuple[str, Remedy]:
    """Who wants the CPUs that there are, and what to do about it."""
    seen = measures.machine
    has = _cpus(seen.cpus) if seen.cpus else "how many CPUs there are was not noted"
    stopped_s, waited_s = seen.throttled_s, measures.wait_s("not scheduled")
    if seen.quota_cpus is not None and (
        stopped_s is None or stopped_s >= QUEUE_SHARE.value * waited_s
    ):
        told = f"the control group's quota is {has}"
        if seen.throttled and stopped_s is not None:
            told += f": it stopped the job {seen.throttled:,} times, {show(stopped_s, 's')}"
        return told, Remedy("job", "raise the CPU quota (Kubernetes: limits.cpu; Docker: --cpus)")
    if measures.training.pooled_waits:
        told = f"the loader's threads share {has}"
        return told, replace(MORE_CPUS, says=f"{MORE_CPUS.says}, or leave these to this job")
    wants = max(1, measures.training.mains) * (_workers(measures) + 1)  # of all ranks at one time
    told = f"{wants:,} workers and ranks want one" if wants > 1 else "one rank wants one"
    told += f", {has}" if seen.cpus else f"; {has}"
    if seen.cpus and wants <= seen.cpus:
        remedy = Remedy("job", "leave CPUs to this job: other programs run on this node")
        return f"{told}: others use them too", remedy
    # Fewer workers would make each wait longer that is not for a CPU.
    is_elsewhere = measures.wait_share("blocked", *STORAGE_PARTS) >= MOSTLY.value
    return told, MORE_CPUS if is_elsewhere else fewer_threads(measures)


def _cpus(n: float) -> str:
    """In words; a quota may be half a CPU."""
    return f"{n:,.6g} CPU{'' if n == 1 else 's'}"


def _workers(measures: Measures) -> int:
    """Of one rank at one time: each pass may have workers of its own, with the same numbers."""
    return max((row.worker + 1 for row in measures.workers), default=0)


STARTUP_SHARE = Threshold(
    0.05,
    "share",
    "of the start-up and the wall time",
    "the step at which XProf calls a job moderately input bound",
)


def slow_startup(measures: Measures) -> _Said:
    """What a change would shorten takes much of the start: listing files, reading data, making a
    cache, importing from slow files, starting workers (also anew with each pass), the first batch.
    The largest of them is told, with its own gain.  Loading a checkpoint has a rule of its own;
    compiling is no I/O."""
    training = measures.training
    whole_s = (training.startup_s or 0.0) + (training.wall_s or 0.0)
    found = startup.causes(measures)
    gain_s = sum(cause.gain_s for cause in found)
    if not found or gain_s <= STARTUP_SHARE.value * whole_s:
        parts = startup.largest(measures)
        says = f"first batch after {show(training.first_batch_s or 0.0, 's')}"
        return _Fine(f"{says}; start-up: {parts}" if parts else says)
    cause = found[0]
    others = startup.largest(measures, but=cause.part)
    return _Found(
        cause.gain_s,
        (*cause.evidence, *([f"the rest of the start-up: {others}"] if others else [])),
        tuple(Remedy(word, says) for word, says in cause.remedies),
        cause.shown,
        whole_s,
    )


# --- checkpoints ---------------------------------------------------------------------------------


def checkpoint_blocks(measures: Measures) -> _Said:
    """The step loop stands still while a checkpoint is saved."""
    block_s = measures.training.checkpoint_block_s or 0.0
    saves = [save for save in measures.checkpoints if save.blocks and save.is_good]
    failed = sum(save.blocks and not save.is_good for save in measures.checkpoints)
    if not saves:
        return _Fine(
            "no checkpoint stops the steps" if not failed else "only saves that failed did"
        )
    mean_s = sum(save.duration_s for save in saves) / len(saves)
    size = sum(save.written_bytes for save in saves) / len(saves)
    in_calls = measures.checkpoint_storage_s / block_s if block_s else 0.0
    speed = f" at {show(size / mean_s, 'B/s')}" if size and mean_s else ""
    bytes_each = f", {show(size, 'B')} each" if size else ""  # none were seen written
    return _Found(
        block_s,
        (
            f"{count(len(saves), 'save')} of {show(mean_s, 's')}{bytes_each}{speed}",
            f"{per_cent(in_calls)} of it in file calls",
            *([f"the time of {count(failed, 'failed save')} is in it"] if failed else []),
            *(f"with files on the fast tier {one.tier} already" for one in measures.burst),
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
    """What a run does already is no remedy."""
    return (
        *(() if measures.burst else (burst,)),
        *(() if measures.checkpointers else (CHECKPOINTER,)),
    )


def slow_checkpoint_target(measures: Measures) -> _Said:
    """Checkpoints are written at a fraction of what another mounted tier was measured to give."""
    saves = [save for save in measures.checkpoints if save.blocks and save.call_s and save.is_good]
    if not saves:
        return _Fine("no checkpoint stops the steps in file calls")
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
        return _Unjudged(
            f"no other tier was measured; `penstock ceiling PATH --write --keep {RUN}` does it"
        )
    best = max(others, key=lambda tier: tier.bandwidth_bps)
    written_bytes = sum(s.written_bytes for s in saves)
    if not written_bytes:
        return _Unjudged("what was written by calls is not known: mapped files, or another process")
    bandwidth_bps = written_bytes / sum(s.call_s for s in saves)
    says = (
        f"{show(bandwidth_bps, 'B/s')} in the calls; {best.mount} gives "
        f"{show(best.bandwidth_bps, 'B/s')}"
    )
    if bandwidth_bps >= FAR_BELOW.value * best.bandwidth_bps:
        return _Fine(says)
    return _Found(
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


def duplicate_writes(measures: Measures) -> _Said:
    """Several ranks write as many bytes to the same file at the same turn: all but one write what
    is there already.  Files of equal size with other names may be shards; contents are not
    compared."""
    turns = _turns(measures)
    same = [turn for turn in turns if _is_alike(turn)]
    if not turns:
        return _Fine("one rank saves")
    if not same:
        return _Fine("ranks write checkpoints of different sizes")
    twice = [turn for turn in same if len({save.path for save in turn}) == 1 and turn[0].path]
    size = show(same[0][0].written_bytes, "B")
    if not twice:
        return _Unjudged(
            f"{count(len(same[0]), 'rank')} write {size} each to files of their own: shards, or "
            "the same bytes; contents are not compared"
        )
    extra = sum(sum(s.written_bytes for s in turn[1:]) for turn in twice)
    block_s = sum(sum(s.duration_s for s in turn if s.blocks) for turn in twice)
    mains = max(1, measures.training.mains)
    return _Found(
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
    "of the start-up and the wall time, and a shorter one is told too",
    "as of a slow start-up (W4)",
)


def slow_restore(measures: Measures) -> _Said:
    """Loading checkpoints takes long: until the weights were read, which of a mapped file is when
    they are put into the model, or page by page when they are first used."""
    loads = [load for load in measures.restores if not load.is_failed]
    training = measures.training
    mains = max(1, training.mains)
    load_s = sum(load.duration_s for load in loads) / mains
    if not loads:
        return _Fine("no checkpoint was loaded")
    whole_s = (training.startup_s or 0.0) + (training.wall_s or 0.0)
    # A mapped file is read by no call: at most all of it is.
    bytes_read = sum(max(load.read_bytes, load.size_bytes or 0) for load in loads)
    n = max(1, sum(load.loads for load in loads))
    says = f"{count(n, 'load')}, {show(load_s, 's')}, {show(bytes_read, 'B')}"
    if load_s <= RESTORE_S.value and load_s < RESTORE_SHARE.value * whole_s:
        return _Fine(says)
    row = max(loads, key=lambda load: load.duration_s)
    faulted_s = sum(load.faulted_s for load in loads) / mains
    return _Found(
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


# --- what failed ---------------------------------------------------------------------------------


def failed_io(measures: Measures) -> _Said:
    """Calls on files failed as none does where storage, space, rights and limits are in order: EIO,
    ENOSPC, ESTALE, EDQUOT, ETIMEDOUT, EMFILE and their like; EACCES and EROFS of data and output.
    What fails in any program is none of it: paths that are looked for in vain, EEXIST, EAGAIN,
    ENOTTY, and calls on pipes and sockets."""
    failed = measures.failures
    if not failed:
        return _Fine(failures.usual(measures))
    cures = failures.cures([failure.errno for failure in failed])
    return _Found(
        None,
        failures.calls_that_failed(failed),
        tuple(Remedy("job", cure) for cure in cures)
        or (Remedy("job", "look at the storage there, and at the job's own output"),),
        "failures",
    )


def failed_saves(measures: Measures) -> _Said:
    """Saves ended in an exception, were cut off with their process, or failed in the background
    after they had returned: they are no checkpoint, whatever lies at their path."""
    told = failures.saves_that_failed(measures)
    if not told:
        return _Fine("no save failed")
    numbers = [save.errno for save in failures.bad_saves(measures) if save.errno]
    cures = failures.cures([*numbers, *(one.errno for one in measures.late_failures if one.errno)])
    return _Found(
        None,
        told,
        (*(Remedy("job", cure) for cure in cures), *_saved_otherwise(measures, VERIFY)),
        "checkpoints",
    )


VERIFY = Remedy(
    "save",
    "see which checkpoints of a folder are whole before one is restored",
    "penstock save verify FOLDER",
)


# --- runs without steps: by the time in calls ----------------------------------------------------

METADATA_OF_CALLS = Threshold(
    0.50,
    "share",
    "of the time in calls, in a run without steps",
    "as WisIO's and DFAnalyzer's rules for metadata",
)


def _calls_metadata(measures: Measures) -> _Said:
    seen = measures.call_times
    told = _blocked_opens(seen)
    metadata_s = max(0.0, seen.metadata_s - seen.blocked_s) if told else seen.metadata_s
    whole_s = seen.read_s + seen.write_s + metadata_s
    if not whole_s:
        return _Fine(f"no file call took time{told}")
    share = metadata_s / whole_s
    says = f"{per_cent(share)} of the time in file calls, {seen.metadata:,} calls{told}"
    if share < METADATA_OF_CALLS.value:
        return _Fine(says)
    return _Found(
        metadata_s,
        (says, NOBODY_WAITED),
        (ONCE, *((PACK,) if measures.reading.files >= MANY_FILES else ())),
        "directories",
        measures.recording.life_s,
    )


def _calls_small(measures: Measures) -> _Said:
    seen = measures.call_times
    moving = seen.reads - (seen.empty_reads or 0)
    if not moving or not seen.read_s:
        return _Fine("no read took time")
    mean = seen.read_bytes / moving
    says = f"{count(moving, 'read')} of {show(mean, 'B')} in the mean"
    if mean >= SMALL_READ_BYTES.value:
        return _Fine(says)
    each_s = seen.read_s * max(1, seen.processes) / seen.reads
    return _Found(
        seen.read_s,
        (f"{says}, {show(each_s, 's')} each", NOBODY_WAITED),
        (*for_small_reads(measures, measures.reading.files), more_at_once(measures)),
        "request_sizes",
        measures.recording.life_s,
    )


def _calls_random(measures: Measures) -> _Said:
    seen = measures.pattern
    if not seen.reads:
        return _Unjudged("single reads of large files are not known")
    share = seen.random / seen.reads
    says = f"{per_cent(share)} of {count(seen.reads, 'read')} in {count(seen.files, 'large file')}"
    if share <= RANDOM_SHARE.value:
        return _Fine(f"{says} were random")
    return _Found(
        seen.random_s * seen.nth / max(1, measures.call_times.processes),
        (f"{says} were random, {show(seen.random_bytes / seen.random, 'B')} each", NOBODY_WAITED),
        (Remedy("code", "shuffle blocks of neighbouring records instead of single ones"),),
        "files",
        measures.recording.life_s,
    )


# --- the recording itself ------------------------------------------------------------------------


def incomplete(measures: Measures) -> _Said:
    """Events are only counted, lost, or cut off, or ranks are missing, so that numbers which need
    them are too small."""
    state, why = measures.events_state
    if state == "measured":
        state, why = measures.spans_state
    if state == "measured":
        return _Fine("nothing was lost")
    if measures.recording.counters_only or measures.recording.imported_lacks:
        return _Unjudged(why)  # another tool's recording: what it lacks is among the gaps
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
    return _Found(None, (why,), (remedy,))


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


def overhead(measures: Measures) -> _Said:
    """The recorder's own cost is worth a finding itself: calls that are recorded, and in a script
    of many short programs the recorder's start in each of them."""
    known = measures.recording
    if known.event_cost_ns is None or not known.life_s:
        return _Unjudged("the cost of one call was not measured in this run")
    calls_s = known.calls * known.event_cost_ns / 1e9
    starts_s = (known.starts_s or 0.0) if known.starts >= MANY_STARTS.value else 0.0
    lives_s = known.lives_s or known.life_s * max(1, known.processes)
    share = (calls_s + starts_s) / (lives_s + starts_s)
    says = f"{show(calls_s, 's')} for {count(known.calls, 'call')}"
    if starts_s:
        says += f" and {show(starts_s, 's')} for its start in {count(known.starts, 'program')}"
    says += f", {per_cent(share)} of the processes' time"
    if share < OVERHEAD.value:
        return _Fine(says)
    if starts_s > calls_s:
        remedy = Remedy(
            "code",
            "put `penstock run` before the program that trains, not before the script around it",
        )
    else:
        remedy = Remedy("code", "record a window: with penstock.record() around some steps")
    return _Found(None, (says,), (remedy,))


# --- what rules have in common -------------------------------------------------------------------


def _worst_directory(measures: Measures) -> tuple[str, ...]:
    """Where the step loop was blocked longest, if that says anything."""
    rows = [row for row in measures.directories if row.path_class == "data" and row.blocking_s]
    if not rows:
        return ()
    row = max(rows, key=lambda row: row.blocking_s)
    return (f"most in {row.path}: {show(row.blocking_s, 's')}",)


def _main_storage(measures: Measures) -> Storage | None:
    """The file system that most data was read from."""
    rows = [row for row in measures.storage if row.path_class == "data" and row.read_bytes]
    return max(rows, key=lambda row: row.read_bytes, default=None)


def _read_ceiling(measures: Measures) -> float | None:
    row = _main_storage(measures)
    return row.read_ceiling_bps if row else None


WAITS = Threshold(
    0.20,
    "share",
    "of a piece of the run's time (of 64) is data wait",
    "chosen: then its bandwidth is that of a job that waits; the step at which XProf says highly",
)


def _waiting_bandwidth(measures: Measures) -> float | None:
    """Bytes per second of data reads in the pieces of the wall time in which the job waits."""
    mains = max(1, measures.training.mains)
    pieces = [p for p in measures.drift if p.waits_s >= WAITS.value * p.piece_s * mains]
    whole_s = sum(piece.piece_s for piece in pieces)
    return sum(piece.read_bytes for piece in pieces) / whole_s if whole_s else None


def _cliff(pieces: Sequence[tuple[float, int]]) -> tuple[int, float, float]:
    """Where to cut waits and steps so that the wait per step grows, and the two sides differ most:
    (at, before, after).  The cut of least squares, as change points are found."""
    best = (LEAST_PIECES, 0.0, 0.0)
    most = 0.0
    for at in range(LEAST_PIECES, len(pieces) - LEAST_PIECES + 1):
        before, after = _rate(pieces[:at]), _rate(pieces[at:])
        head, tail = (sum(steps for _, steps in part) for part in (pieces[:at], pieces[at:]))
        between = head * tail / (head + tail) * max(0.0, after - before) ** 2
        if between > most:
            most, best = between, (at, before, after)
    return best


def _rate(pieces: Sequence[tuple[float, int]]) -> float:
    steps = sum(n for _, n in pieces)
    return sum(s for s, _ in pieces) / steps if steps else 0.0


def _slower(pieces: Sequence[tuple[float, int]], at: int) -> float:
    """How many times as long a byte takes after the cut; 0 where nothing was read before it."""
    before, after = _rate(pieces[:at]), _rate(pieces[at:])
    return after / before if before else 0.0


@dataclass(frozen=True, slots=True)
class _Numbered:
    """What the workers with one number did in all passes: each pass may start them anew.

    later, later_s: fetches but the first of each worker, which may open the data set, and how long
    they took, less the time without a CPU.  owed_s: of the waits for this worker, in its fetches.
    """

    worker: int
    rank: int | None
    fetches: int
    later: int
    later_s: float
    owed_s: float

    @property
    def mean_s(self) -> float:
        return self.later_s / self.later


def _by_number(measures: Measures) -> list[list[_Numbered]]:
    """Of each main process and loader, as the number of workers tells loaders apart."""
    teams: dict[tuple[int, int], dict[int, list[Worker]]] = {}
    for row in measures.workers:
        teams.setdefault((row.main, row.team), {}).setdefault(row.worker, []).append(row)
    return [
        [
            _Numbered(
                worker,
                rows[0].rank,
                sum(row.fetches for row in rows),
                sum(row.fetches - 1 for row in rows),
                sum(row.fetch_s - row.first_fetch_s - (row.delay_s or 0.0) for row in rows),
                sum(row.owed_fetch_s for row in rows),
            )
            for worker, rows in sorted(of_team.items())
        ]
        for of_team in teams.values()
    ]


def _slow_worker(measures: Measures) -> _Found | None:
    best: _Found | None = None
    for team in _by_number(measures):
        rows = [row for row in team if row.later >= LEAST_FETCHES.value]
        if len(rows) < 2:
            continue
        slow = max(rows, key=lambda row: row.mean_s)
        others = [row for row in rows if row is not slow]
        usual_s = median(row.mean_s for row in others)
        if slow.mean_s < STRAGGLES.value * usual_s:
            continue
        # Neither more than was waited beyond the others, nor than its fetches took beyond theirs.
        gain_s = max(
            0.0,
            min(
                slow.owed_s - median(row.owed_s for row in others),
                slow.fetches * (slow.mean_s - usual_s),
            ),
        )
        of_rank = "" if slow.rank is None else f" of rank {slow.rank}"
        found = _Found(
            gain_s / max(1, measures.training.mains),
            (
                f"worker {slow.worker}{of_rank} takes {show(slow.mean_s, 's')} a batch, "
                f"the others {show(usual_s, 's')}",
                f"the step loop waited {show(slow.owed_s, 's')} while it fetched",
            ),
            (Remedy("loader", "give each worker an equal share: files of like size, mixed"),),
            "workers",
        )
        if best is None or (found.gain_s or 0.0) > (best.gain_s or 0.0):
            best = found
    return best


def _slow_rank(measures: Measures) -> _Found | None:
    ranks = {row.rank: row for row in measures.ranks if row.rank is not None}
    if len(ranks) < 2:  # other processes that train are named by where they run, not by a rank
        ranks = {}
    waits = ranks or {row.process: row for row in measures.ranks}
    if len(waits) < 2:
        return None
    slow, row = max(waits.items(), key=lambda item: item[1].data_wait_s)
    usual = median(one.data_wait_s for name, one in waits.items() if name != slow)
    if row.data_wait_s < STRAGGLES.value * usual:
        return None
    name = f"rank {slow}" if ranks else f"one of {len(waits)} main processes, without a rank,"
    return _Found(
        row.data_wait_s - usual,
        (
            f"{name} on {row.host} waits {show(row.data_wait_s, 's')} for data, "
            f"the others {show(usual, 's')}",
            *_held_up(waits, slow),
        ),
        (Remedy("job", "give each rank an equal share of the bytes; look at that node's tier"),),
        "ranks",
    )


def _held_up(ranks: Mapping[int, Rank], slow: int) -> tuple[str, ...]:
    """What the others waited at barriers, where these are known."""
    others = [row.barrier_s or 0.0 for name, row in ranks.items() if name != slow]
    own_s = ranks[slow].barrier_s or 0.0
    if median(others) <= own_s:
        return ()
    told = f"{show(median(others), 's')}, it itself {show(own_s, 's')}"
    return (f"the others wait for it at barriers: {told}",)


def _turns(measures: Measures) -> list[list[Checkpoint]]:
    """Checkpoints of several ranks, the n-th of each together; largest first."""
    mains = {row.process for row in measures.ranks}
    by_process: dict[int, list[Checkpoint]] = {}
    for save in measures.checkpoints:
        if save.process in mains and save.written_bytes:
            by_process.setdefault(save.process, []).append(save)
    if len(by_process) < 2:
        return []
    turns = zip(*by_process.values(), strict=False)
    return [sorted(turn, key=lambda save: -save.written_bytes) for turn in turns]


def _is_alike(turn: Sequence[Checkpoint]) -> bool:
    return (
        turn[-1].written_bytes >= SAME_BYTES.value * turn[0].written_bytes
        and len({save.files for save in turn}) == 1
    )


# --- the rules, in the order they are told -------------------------------------------------------

RULES: tuple[Rule, ...] = (
    Rule(
        "D1",
        "metadata storm",
        metadata_storm,
        (METADATA_SHARE, METADATA_PER_OPEN, METADATA_OF_CALLS, BLOCKED_FILES),
        of_calls=_calls_metadata,
    ),
    Rule(
        "D2",
        "small reads, bound by latency",
        small_reads,
        (SMALL_SHARE, SMALL_READ_BYTES, FAR_BELOW, FEW_SLOW),
        of_calls=_calls_small,
    ),
    Rule(
        "D3", "bandwidth at the tier's ceiling", bandwidth_bound, (NEAR, WAITS, ABOVE), ("D2", "W1")
    ),
    Rule(
        "D4", "random reads of large files", random_reads, (RANDOM_SHARE,), ("D2",), _calls_random
    ),
    Rule("D5", "cache cliff", cache_cliff, (CLIFF, OF_MEMORY)),
    Rule("D6", "the same data again over the network", reread_remote, (REREAD,)),
    Rule(
        "D7",
        "page faults of mapped files",
        mapped_files,
        (IN_FAULTS, LONGEST_FAULT),
        of_calls=_calls_faulted,
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
        of_calls=_read_again,
    ),
    Rule("D13", "each worker reads all of the data", each_worker_reads_all, (ALL_BY_WORKERS,)),
    Rule("W1", "too few workers", too_few_workers, (BUSY,)),
    Rule("W2", "decoding on the CPU, not I/O", decode_bound, (CPU_SHARE,)),
    Rule("W3", "fetches without a CPU", oversubscribed, (QUEUE_SHARE, MOSTLY)),
    Rule("W4", "slow start-up", slow_startup, (STARTUP_SHARE,)),
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
    Rule("X2", "cost of recording", overhead, (OVERHEAD, MANY_STARTS), of_calls=overhead),
)


# These judge no wait.
OF_THE_RECORDING = ("X1", "X2")
OF_FAILURES = ("F1", "C5")  # and come first: what is lost matters more than what is slow


def judge(measures: Measures) -> Judgement:
    """Asks every rule; keeps what is worth a change and what no other finding explains."""
    found: dict[str, Finding] = {}
    checks: dict[str, Check] = {}
    for rule in RULES:
        judges = rule.judges if measures.has_training else rule.of_calls
        if judges is None:
            checks[rule.rule] = Check(rule.rule, rule.title, "not judged", "no training steps seen")
            continue
        said = judges(measures)
        if isinstance(said, _Found):
            finding = _finding(rule, said, measures)
            if finding.share.value is None or finding.share.value >= WORTH:
                found[rule.rule] = finding
                continue
            told = f"{per_cent(finding.share.value)} of {finding.of}: {said.evidence[0]}"
            checks[rule.rule] = Check(rule.rule, rule.title, "fine", told)
        else:
            state = "fine" if isinstance(said, _Fine) else "not judged"
            checks[rule.rule] = Check(rule.rule, rule.title, state, said.says)
    checks |= _doubted(checks, measures)
    for rule in RULES:
        for other in rule.suppresses if rule.rule in found else ():
            if silenced := found.pop(other, None):
                told = f"{rule.rule} explains it: {silenced.evidence[0]}"
                checks[other] = Check(other, silenced.title, "suppressed", told)
    return Judgement(
        tuple(
            sorted(
                found.values(),
                key=lambda one: (one.rule not in OF_FAILURES, -(one.gain.value or 0.0)),
            )
        ),
        tuple(checks[rule.rule] for rule in RULES if rule.rule in checks),
    )


# These judge what is seen without any data wait.
OF_NO_WAIT = (*OF_THE_RECORDING, *OF_FAILURES, "W4", "C1", "C2", "C3", "C4")


def _doubted(checks: Mapping[str, Check], measures: Measures) -> dict[str, Check]:
    """Withdraw "fine" where data waits that were not seen may be a finding."""
    state, why = measures.spans_state
    told = f"waits may be missing: {why}" if state != "measured" else measures.doubt
    if not told and (still := still_of(measures)):
        told = "the job is suspended" if still.is_suspended else "the job stands still"
    if not told:
        return {}
    exempt = OF_THE_RECORDING if state != "measured" or measures.missing else OF_NO_WAIT
    return {
        rule: replace(check, state="not judged", says=told)
        for rule, check in checks.items()
        if check.state == "fine" and rule not in exempt
    }


def _finding(rule: Rule, said: _Found, measures: Measures) -> Finding:
    of_s = said.of_s or measures.training.wall_s
    remedies = tuple(_with_a_tier(remedy, measures) for remedy in said.remedies)
    if said.gain_s is None or not of_s:
        none = Number(None, "s", "not measured", "it is no wait")
        share = Number(None, "share", "not measured", "it is no wait")
        return Finding(rule.rule, rule.title, said.evidence, none, share, remedies, said.shown)
    gain_s = min(said.gain_s, of_s)  # of many processes the mean may still be more than the run
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
    """Names the node's own NVMe where one is wanted and has nothing of the run yet."""
    used = {row.mount for row in measures.storage}
    free = next((one for one in measures.flash if one.mount not in used), None)
    if free is None or NAME_THE_TIER not in remedy.says:
        return remedy
    told = (
        f"; first name a folder on {free.mount}, NVMe of this node ({free.device}, "
        f"{show(free.free_bytes, 'B')} free): `penstock tiers add fast FOLDER`"
    )
    return replace(remedy, says=remedy.says.replace(NAME_THE_TIER, told))


def _whole(said: _Found, measures: Measures) -> str:
    """What a share is of."""
    if not measures.has_training:
        return "the run"
    return "the wall time" if said.of_s is None else "start-up and wall time"


def describe_rules(examples: Mapping[str, str] | None = None) -> str:
    """RULES as Markdown, for the documentation; with what a terminal shows of a run that has it,
    by rule, if that is handed in."""
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
        lines += ["", f"Silences {' and '.join(rule.suppresses)}, which it explains."]
    if example:
        lines += ["", "For example:", "", *(f"    {line}".rstrip() for line in example.split("\n"))]
    return "\n".join((*lines, ""))


def _number_of(threshold: Threshold) -> str:
    """In the units of the reasons: sizes of reads are powers of two."""
    if threshold.unit == "B":
        return f"{threshold.value / 1024:.0f} KiB"
    if threshold.unit == "x":
        return f"{threshold.value:g} times"
    return re.sub(r"\.0+(?= )", "", show(threshold.value, threshold.unit))
