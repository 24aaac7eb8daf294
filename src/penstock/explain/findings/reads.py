"""Rules about reading data: opens, sizes and order of reads, and the tier's ceiling."""

from penstock.explain.findings.rule import (
    NOBODY_WAITED,
    Fine,
    RuleResult,
    Said,
    Threshold,
    Unjudged,
)
from penstock.explain.findings.workers import QUEUE_SHARE
from penstock.explain.measures import CallTimes, Measures, MetadataCalls, Storage
from penstock.explain.remedies import (
    FASTER_TIER,
    MANY_FILES,
    ONCE,
    PACK,
    RUN,
    STAGE,
    Remedy,
    by_index,
    for_metadata,
    for_small_reads,
    further_ahead,
    more_at_once,
)
from penstock.words import count, per_cent, show

__all__ = [
    "ABOVE",
    "BLOCKED_FILES",
    "CROWD",
    "CROWDED",
    "EMPTY_PER_OPEN",
    "EMPTY_SHARE",
    "FAR_BELOW",
    "FEW_IN_TAIL",
    "FEW_SLOW",
    "LEAST_ALIKE",
    "LEAST_SLOTS",
    "METADATA_OF_CALLS",
    "METADATA_PER_OPEN",
    "METADATA_SHARE",
    "NEAR",
    "RANDOM_SHARE",
    "SMALL_READ_BYTES",
    "SMALL_SHARE",
    "TAIL",
    "TAIL_SHARE",
    "WAITS",
    "bandwidth_bound",
    "calls_metadata",
    "calls_random",
    "calls_small",
    "empty_reads",
    "from_memory",
    "metadata_storm",
    "random_reads",
    "small_reads",
    "tail_latency",
    "too_many_readers",
]

MEASURE_CEILING = f"no ceiling was measured; `penstock ceiling {RUN}` does it"

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


def metadata_storm(measures: Measures) -> Said:
    """Opening, examining and listing files takes much of the wait for storage, or many such calls
    are made for each file that is opened: of a loader, or of the training thread itself.  Few opens
    that take seconds wait for something else."""
    seen = measures.metadata
    opens = _blocked_opens(seen)
    # The wait counts calls on files of every class; the blocking time also counts calls outside of
    # waits.  The larger number is complete.
    in_steps_s = measures.data_blocking.get("metadata", 0.0)
    wait_s = max(measures.wait_s("metadata"), in_steps_s)
    whole_s = max(measures.data_storage_s, sum(measures.data_blocking.values()))
    if opens and seen.time_s:
        wait_s *= 1 - min(1.0, seen.blocked_s / seen.time_s)
    share = wait_s / whole_s if whole_s else 0.0
    per_open = seen.calls / seen.opens if seen.opens else 0.0
    calls = f"{show(per_open, 'count')} calls per open{opens}"
    says = f"{per_cent(share)} of the wait for storage, {calls}"
    if share < METADATA_SHARE.value and per_open <= METADATA_PER_OPEN.value:
        return Fine(says)
    mean_s = seen.time_s / seen.calls if seen.calls else None
    failed = f", {seen.failed:,} of them in vain" if seen.failed else ""
    return RuleResult(
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
    """Return a remark on a few opens of seconds each; "" without such opens, or with too many."""
    if not 0 < seen.blocked_files <= BLOCKED_FILES.value:
        return ""
    each_s = seen.blocked_s / max(1, seen.blocked_opens)
    return (
        f"; not counted: {count(seen.blocked_opens, 'open')} of "
        f"{count(seen.blocked_files, 'file')} that took {show(each_s, 's')} each, as of a pipe"
    )


def small_reads(measures: Measures) -> Said:
    """Most of the time of blocking reads is in small ones that did not come from memory, while the
    tier gives little of the bandwidth that was measured for it."""
    reads = measures.blocking_reads
    if not reads.blocking_s and not reads.calls:
        return Fine("no read of data blocked the step loop")
    moving_s = reads.blocking_s - reads.empty_s  # empty reads are E1's
    share = reads.small_s / moving_s if moving_s > 0 else 0.0
    slow = f"{reads.slow_calls:,} of {count(reads.small_calls, 'small read')}"
    slow += f" in {count(reads.files, 'file')} took longer than from memory"
    if not reads.slow_calls or (
        reads.slow_calls < FEW_SLOW.value * reads.small_calls and not _delay_is_known(measures)
    ):
        return Fine(slow if reads.small_calls else "no small read blocked the step loop")
    if share < SMALL_SHARE.value:
        return Fine(f"{per_cent(share)} of the blocking reads' time is in reads under 256 KiB")
    # If the readers had a CPU, the wait was no copy from memory, even if the kernel counts few
    # device bytes: a file system may be slow itself.
    if from_memory(measures) and not _delay_is_known(measures):
        return Fine(f"{slow}, but most bytes came from memory")
    used_bps, ceiling_bps = _waiting_bandwidth(measures), _read_ceiling(measures)
    limit = f" of {show(ceiling_bps, 'B/s')} measured" if ceiling_bps else ""
    used = f", {show(used_bps, 'B/s')} while waiting{limit}" if used_bps else ""
    if ceiling_bps and used_bps and used_bps >= FAR_BELOW.value * ceiling_bps:
        return Fine(f"reads are small, but {show(used_bps, 'B/s')}{limit}")
    each_s = reads.small_all_s / reads.slow_calls
    mean = reads.read_bytes / reads.calls if reads.calls else None
    return RuleResult(
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
    """Return True if time without a CPU was measured in all fetches, and excluded from calls."""
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


def bandwidth_bound(measures: Measures) -> Said:
    """While the step loop waits, data is read nearly as fast as the tier was measured to give; what
    is read faster than that comes from memory."""
    ceiling_bps, used_bps = _read_ceiling(measures), _waiting_bandwidth(measures)
    if not used_bps:
        return Fine("the step loop hardly waits for reads")
    if not ceiling_bps:
        return Unjudged(MEASURE_CEILING)
    says = f"{show(used_bps, 'B/s')} while waiting, {show(ceiling_bps, 'B/s')} measured"
    if used_bps < NEAR.value * ceiling_bps:
        return Fine(f"{says}: {per_cent(used_bps / ceiling_bps)}")
    if used_bps > ABOVE.value * ceiling_bps or from_memory(measures):
        return Fine(f"{says}: most bytes came from memory")
    return RuleResult(
        measures.wait_s("read"),
        (f"{says}: {per_cent(used_bps / ceiling_bps)} of what the tier gives",),
        (
            STAGE,
            Remedy("code", "fewer bytes a sample: compress, crop, or lower the resolution"),
            FASTER_TIER,
        ),
        "bandwidth",
    )


# File systems for which the kernel attributes reads to the reading program.
COUNTED = {
    "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "lustre", "nfs", "nfs4", "overlay",
    "squashfs", "vfat", "xfs",
}  # fmt: skip
FROM_DEVICES = 0.5  # the least share of bytes from devices for reads that do not come from memory


def from_memory(measures: Measures) -> bool:
    """Return True if less than half of the read bytes came from devices, as the kernel counts.

    False if the kernel counted nothing.
    """
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


def _random(measures: Measures) -> tuple[float, str]:
    """Return the share of random reads in large files, and the share in words."""
    seen = measures.pattern
    share = seen.random / seen.reads
    files = count(seen.files, "large file")
    return share, f"{per_cent(share)} of {count(seen.reads, 'read')} in {files}"


def random_reads(measures: Measures) -> Said:
    """Many reads of large files neither go on where the one before ended nor lie in what the kernel
    has read ahead."""
    seen = measures.pattern
    if not seen.reads:
        return Fine("no large data file was read", applies=False)
    share, says = _random(measures)
    if share <= RANDOM_SHARE.value:
        return Fine(f"{says} were random")
    mean = seen.random_bytes / seen.random
    return RuleResult(
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
    if amplified.value == 0:  # from memory, or from a file system without a device
        return "not known, as no byte came from a block device"
    return amplified.state if amplified.value is None else show(amplified.value, "x")


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


def tail_latency(measures: Measures) -> Said:
    """Few reads take many times as long as most reads of like size, and the step loop waits for
    these few."""
    reads = measures.blocking_reads
    if not reads.blocking_s:
        return Fine("no read of data blocked the step loop")
    if not reads.tail_bytes or not reads.tail_p50_s or not reads.tail_p99_s:
        return Fine("reads of like size take about as long")
    ratio, share = reads.tail_p99_s / reads.tail_p50_s, reads.tail_s / reads.blocking_s
    sizes = f"reads of {show(reads.tail_bytes, 'B')} to {show(2 * reads.tail_bytes, 'B')}"
    says = f"{sizes}: 99th percentile {show(ratio, 'x')} the median"
    if ratio < TAIL.value or share < TAIL_SHARE.value:
        return Fine(says)
    if from_memory(measures):
        return Fine(f"{says}, but most bytes came from memory")
    if measures.wait_share("not scheduled") >= QUEUE_SHARE.value:
        return Unjudged(f"{says}, but fetches wait for a processor: W3")
    return RuleResult(
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


def empty_reads(measures: Measures) -> Said:
    """Many reads move nothing: they ask at the end of a file whether there is more, one system call
    a file for nothing.  Asking the same open file again and again is waiting for it to grow."""
    data, reads = measures.reading, measures.blocking_reads
    if data.empty_reads is None:
        return Unjudged("the imported counters do not say which reads moved nothing")
    share = data.empty_reads / data.reads if data.reads else 0.0
    says = f"{per_cent(share)} of {count(data.reads, 'read')} are empty"
    if share < EMPTY_SHARE.value:
        return Fine(says)
    if data.empty_reads > EMPTY_PER_OPEN.value * max(data.opens, data.files):
        opens = f"{count(data.opens, 'open')} of data files"
        return Fine(f"{says}, with {opens}: they wait for files to grow")
    return RuleResult(
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


def too_many_readers(measures: Measures) -> Said:
    """With more large reads under way, data is read more slowly: the device seeks between them."""
    levels = [row for row in measures.concurrency if row.slots >= LEAST_SLOTS.value]
    if len(levels) < 2:
        return Fine("the number of reads under way hardly changed")
    best, most = max(levels, key=lambda row: row.bandwidth_bps), levels[-1]
    says = (
        f"{show(most.bandwidth_bps, 'B/s')} with {count(most.level, 'read')} under way, "
        f"{show(best.bandwidth_bps, 'B/s')} with {best.level}"
    )
    is_crowd = most.level >= CROWD.value * best.level
    falls = is_crowd and most.bandwidth_bps < CROWDED.value * best.bandwidth_bps
    # More small reads cost more calls, not seeks.
    if not falls or min(best.read_bytes, most.read_bytes) < SMALL_READ_BYTES.value:
        return Fine(says)
    if from_memory(measures):
        return Fine(f"{says}: most bytes came from memory")
    if measures.wait_share("not scheduled") >= QUEUE_SHARE.value:
        return Unjudged(f"{says}, but fetches wait for a processor: W3")
    kept = most.bandwidth_bps / best.bandwidth_bps
    return RuleResult(
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


METADATA_OF_CALLS = Threshold(
    0.50,
    "share",
    "of the time in calls, in a run without steps",
    "as WisIO's and DFAnalyzer's rules for metadata",
)


def calls_metadata(measures: Measures) -> Said:
    seen = measures.call_times
    opens = _blocked_opens(seen)
    metadata_s = max(0.0, seen.metadata_s - seen.blocked_s) if opens else seen.metadata_s
    whole_s = seen.read_s + seen.write_s + metadata_s
    if not whole_s:
        return Fine(f"no file call took time{opens}")
    share = metadata_s / whole_s
    says = f"{per_cent(share)} of the time in file calls, {seen.metadata:,} calls{opens}"
    if share < METADATA_OF_CALLS.value:
        return Fine(says)
    return RuleResult(
        metadata_s,
        (says, NOBODY_WAITED),
        (ONCE, *((PACK,) if measures.reading.files >= MANY_FILES else ())),
        "directories",
        measures.recording.life_s,
    )


def calls_small(measures: Measures) -> Said:
    seen = measures.call_times
    moving = seen.reads - (seen.empty_reads or 0)
    if not moving or not seen.read_s:
        return Fine("no read took time")
    mean = seen.read_bytes / moving
    says = f"{count(moving, 'read')} of {show(mean, 'B')} in the mean"
    if mean >= SMALL_READ_BYTES.value:
        return Fine(says)
    each_s = seen.read_s * max(1, seen.processes) / seen.reads
    return RuleResult(
        seen.read_s,
        (f"{says}, {show(each_s, 's')} each", NOBODY_WAITED),
        (*for_small_reads(measures, measures.reading.files), more_at_once(measures)),
        "request_sizes",
        measures.recording.life_s,
    )


def calls_random(measures: Measures) -> Said:
    seen = measures.pattern
    if not seen.reads:
        return Unjudged("single reads of large files are not known")
    share, says = _random(measures)
    if share <= RANDOM_SHARE.value:
        return Fine(f"{says} were random")
    return RuleResult(
        seen.random_s * seen.nth / max(1, measures.call_times.processes),
        (f"{says} were random, {show(seen.random_bytes / seen.random, 'B')} each", NOBODY_WAITED),
        (Remedy("code", "shuffle blocks of neighbouring records instead of single ones"),),
        "files",
        measures.recording.life_s,
    )


def _worst_directory(measures: Measures) -> tuple[str, ...]:
    """Return a line on the directory that blocked the step loop longest, if known."""
    rows = [row for row in measures.directories if row.path_class == "data" and row.blocking_s]
    if not rows:
        return ()
    row = max(rows, key=lambda row: row.blocking_s)
    return (f"most in {row.path}: {show(row.blocking_s, 's')}",)


def _main_storage(measures: Measures) -> Storage | None:
    """Return the file system with the most bytes of data read."""
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
    """Return the bytes per second of data reads in the parts of the wall time with much waiting."""
    mains = max(1, measures.training.mains)
    pieces = [p for p in measures.drift if p.waits_s >= WAITS.value * p.piece_s * mains]
    whole_s = sum(piece.piece_s for piece in pieces)
    return sum(piece.read_bytes for piece in pieces) / whole_s if whole_s else None
