"""Rules about bytes that memory could have served: bytes read again, bytes read by each process,
and mapped files."""

from collections.abc import Sequence
from dataclasses import replace

from penstock.explain.findings.reads import from_memory
from penstock.explain.findings.rule import (
    NOBODY_WAITED,
    WORTH,
    Fine,
    RuleResult,
    Said,
    Threshold,
    Unjudged,
)
from penstock.explain.measures import Measures
from penstock.explain.remedies import (
    FASTER_TIER,
    NAME_THE_TIER,
    PROFILER,
    STAGE,
    Remedy,
    format_of,
    mapped_better,
    once_a_pass,
    share_each,
)
from penstock.words import count, per_cent, show

__all__ = [
    "AGAIN",
    "ALL_BY_WORKERS",
    "ALL_OF_IT",
    "CLIFF",
    "IN_FAULTS",
    "LONGEST_FAULT",
    "OF_MEMORY",
    "REREAD",
    "cache_cliff",
    "calls_faulted",
    "each_reads_all",
    "each_worker_reads_all",
    "mapped_files",
    "read_again",
    "reread_remote",
    "same_bytes_again",
]

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


def cache_cliff(measures: Measures) -> Said:
    """From some moment on a step waits longer than before and a byte takes longer to read: what was
    served from memory now comes from the device.  A data set that fits the memory cannot do
    that."""
    pieces = [piece for piece in measures.drift if piece.steps]
    if len(pieces) < 2 * LEAST_PIECES:
        return Fine("too few steps for a change to show")
    data, memory = measures.reading, measures.machine.memory_bytes
    at, before, after = _cliff([(piece.waits_s, piece.steps) for piece in pieces])
    head, tail = pieces[:at], pieces[at:]
    slower = _slower([(piece.read_s, piece.read_bytes) for piece in pieces], at)
    if after < CLIFF.value * before or slower < CLIFF.value:
        return Fine(
            f"a step waits {show(before, 's')}, after the largest change {show(after, 's')}"
        )
    if not memory:
        return Unjudged("whether the data fits the memory is open: the memory's size was not noted")
    if data.size_bytes < OF_MEMORY.value * memory:
        return Fine(f"the data, {show(data.size_bytes, 'B')}, fits the memory")
    mains = max(1, measures.training.mains)
    gain_s = (sum(p.waits_s for p in tail) - before * sum(p.steps for p in tail)) / mains
    first = 1 + sum(piece.steps for piece in head) // mains
    if from_memory(measures):
        return Fine("a step waits longer from some moment on, but most bytes came from memory")
    sizes = f"{show(data.size_bytes, 'B')} of data on {show(memory, 'B')} of memory"
    return RuleResult(
        max(0.0, gain_s),
        (
            f"from step {first:,} on a step waits {show(after, 's')}, before {show(before, 's')}",
            f"reading a byte takes {show(slower, 'x')} as long; {sizes}",
        ),
        (
            Remedy("job", "more memory, fewer bytes a sample, or each node its own share of it"),
            STAGE,
            FASTER_TIER,
        ),
        "steps",
    )


# File systems over a network, by type in /proc/self/mountinfo.
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


def reread_remote(measures: Measures) -> Said:
    """Data on a file system that is reached over a network (by its type in /proc/self/mountinfo)
    was read again and again: a copy on this node would have been read instead."""
    data_rows = [row for row in measures.storage if row.path_class == "data"]
    if data_rows and all(row.kind is None for row in data_rows):
        return Unjudged("which file systems are mounted was not noted")
    remote = [row for row in data_rows if row.kind in REMOTE]
    if not remote:
        return Fine("no data was read over a network", applies=False)
    row = max(remote, key=lambda row: row.read_bytes)
    hosts = max(1, measures.recording.hosts)  # each host would need a copy
    times = row.read_bytes / row.size_bytes / hosts if row.size_bytes else 0.0
    each = f" by each of {hosts} hosts" if hosts > 1 else ""
    if times < REREAD.value:
        return Fine(f"read {show(times, 'x')}{each} from {row.kind}")
    if from_memory(measures):
        return Fine(f"read {show(times, 'x')}{each}, but most bytes came from memory")
    share = row.read_bytes / sum(data_row.read_bytes for data_row in data_rows)
    return RuleResult(
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


def each_reads_all(measures: Measures) -> Said:
    """Each rank of a job reads the whole data set in each pass, where a share of it each would do:
    the loader does not know of the others, or the container can only be read from its begin."""
    ranks = measures.job.ranks
    if ranks < 2:
        return Fine("one rank: none to share with", applies=False)
    if measures.recording.counters_only:
        return Unjudged("which rank read what is not known")
    passes = max((row.epoch for row in measures.epochs), default=0)
    if not passes:
        return Unjudged("no pass of a loader was seen: how often the data should be read is open")
    size_bytes = sum(row.size_bytes or 0 for row in measures.sharing)
    read_bytes = sum(row.read_bytes for row in measures.sharing)
    if not size_bytes:
        return Fine("no rank read a data file", applies=False)
    share = read_bytes / size_bytes / ranks / passes
    says = f"a rank reads {per_cent(share)} of the data set's {show(size_bytes, 'B')} in a pass"
    if share < ALL_OF_IT.value:
        return Fine(says)
    return RuleResult(
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


def each_worker_reads_all(measures: Measures) -> Said:
    """Each worker of a DataLoader reads all files of an IterableDataset: it does not ask which
    worker it is (torch.utils.data.get_worker_info), so each item comes once from each worker, or
    each worker reads the items of the others too and drops them."""
    if measures.recording.counters_only:
        return Unjudged("which worker read what is not known")
    seen = next((row for row in measures.worker_sharing if row.workers and row.files), None)
    if seen is None or not seen.workers or not seen.size_bytes:
        return Fine("no IterableDataset was read to its end by several workers", applies=False)
    files = count(seen.whole_files, "file")
    says = (
        f"of {count(seen.files, 'file')} a pass reads, each of {seen.workers} workers reads {files}"
    )
    if seen.whole_bytes < ALL_BY_WORKERS.value * seen.size_bytes:
        return Fine(says)
    gain_s = measures.data_storage_s * (1 - 1 / seen.workers)
    wall_s = measures.training.wall_s or 0.0
    return RuleResult(
        gain_s if gain_s >= WORTH * wall_s > 0 else None,  # a mistake even without a cost
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


def same_bytes_again(measures: Measures) -> Said:
    """One process reads the same bytes of a file several times in one epoch: an archive that is
    scanned for each sample, a chunk that is read for each sample in it, a seek in a compressed
    file.  From memory this is CPU time.  Without a known loader the number of epochs is not known:
    then only a file that is read several times in each step is a finding."""
    rows = measures.rereads
    if not rows and "torch" not in measures.loaders:
        return read_again(measures)
    if not rows:
        return Fine("no process read a file's bytes several times in an epoch")
    row = max(rows, key=lambda row: (row.blocking_s, row.read_bytes - row.size_bytes))
    kind = format_of(row.path or "")
    gain_s = sum(file_row.blocking_s * (1 - 1 / file_row.times) for file_row in rows)
    if kind.is_decoded:  # bytes read again are decoded again
        again = sum(file_row.read_bytes for file_row in rows)
        share = again / max(again, measures.reading.read_bytes)
        gain_s += measures.wait_s("cpu", "cached", "not scheduled") * share * (1 - 1 / row.times)
    more = f" and {count(len(rows) - 1, 'other file')}" if len(rows) > 1 else ""
    # The table of files also shows this number, over all epochs and processes.
    whole = max(
        (file.read_times or 0.0 for file in measures.files if file.path == row.path), default=0
    )
    in_all = f", {show(whole, 'x')} in all" if show(whole, "x") != show(row.times, "x") else ""
    return RuleResult(
        gain_s,
        (
            f"{row.path}{more}: {show(row.size_bytes, 'B')}, read {show(row.times, 'x')} in an "
            f"epoch by one process{in_all if whole else ''}, {show(row.mean_bytes, 'B')} a read",
            f"opened {count(row.opens, 'time')} in {count(row.passes, 'epoch')}; "
            f"{show(sum(file_row.read_bytes for file_row in rows), 'B')} read of "
            f"{count(len(rows), 'such file')}",
        ),
        (*once_a_pass(measures, row.path or "", row.size_bytes), PROFILER)
        if not row.blocking_s
        else once_a_pass(measures, row.path or "", row.size_bytes),
        "files",
    )


def read_again(measures: Measures) -> Said:
    """Without a loader the number of epochs is not known, but an epoch has a step at least: a file
    that is read several times per step and process is read so often in each epoch."""
    named = [row for row in measures.files if row.path]
    rows = [row for row in named if (row.read_times or 0.0) >= AGAIN.value]
    if not rows:
        others = any(row.path is None for row in measures.files)
        of_those = f" of the {count(len(named), 'file')} with most time in calls" if others else ""
        return Fine(f"none{of_those} was read {show(AGAIN.value, 'x')} its size")
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
        return Unjudged(f"{says}{of_steps}; how many epochs that is, no known loader tells")
    return RuleResult(
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


def mapped_files(measures: Measures) -> Said:
    """Data files are mapped into memory, and the step loop stood still at pages that were not in
    memory: reading through a mapping makes no call.  Each page fault is sampled with its file
    where the kernel allows it; else major faults of fetches are all that is known."""
    recording = measures.recording
    if measures.faults.is_measured:
        return _faulted(measures, measures.faults.blocking_s)
    if not recording.mapped_files:
        return Fine("no data file is mapped into memory", applies=False)
    return _faulted_fetches(measures)


def _faulted(measures: Measures, gain_s: float) -> Said:
    """Judge by sampled faults: the file, number and time of faults, and a better way of reading."""
    seen = measures.faults
    files = [row for row in measures.fault_files if row.path_class == "data" and row.path]
    if not files:
        return Fine("no data file is mapped into memory", applies=False)
    n = seen.major + seen.waited
    if not n:
        return Fine(f"no page of {count(len(files), 'mapped data file')} had to be waited for")
    row = max(files, key=lambda row: (row.blocking_s, row.waited_s))
    waits = row.major + row.waited
    return RuleResult(
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


def calls_faulted(measures: Measures) -> Said:
    """The same by the time in faults: without steps nobody is known to have waited for it."""
    seen, life_s = measures.faults, measures.recording.life_s or 0.0
    if not seen.is_measured:
        return Unjudged(seen.quality[1])
    if seen.waited_s < IN_FAULTS.value * life_s:
        return Fine(f"{show(seen.waited_s, 's')} in page faults of data files")
    said = _faulted(measures, seen.waited_s)
    if not isinstance(said, RuleResult):
        return said
    return replace(said, evidence=(*said.evidence, NOBODY_WAITED), of_s=life_s)


def _faulted_fetches(measures: Measures) -> Said:
    """Judge by the system's fault counts of fetching threads, which name no file."""
    record, seen = measures.recording, measures.page_faults
    mapped = count(record.mapped_files, "data file")
    if not seen.fetches:
        return Unjudged(f"{mapped} mapped into memory, and page faults were not counted")
    if not seen.faults:
        return Fine(f"{mapped} mapped into memory, and no fetch stopped at a page")
    most_s = seen.faults * LONGEST_FAULT.value / max(1, measures.training.mains)
    gain_s = min(seen.blocked_s, most_s)
    return RuleResult(
        gain_s,
        (
            f"{mapped} mapped ({show(record.mapped_bytes, 'B')}); {count(seen.faults, 'page')} not "
            f"in memory stopped {count(seen.faulted, 'fetch')} of {seen.fetches:,}",
            f"at most {show(gain_s, 's')}: these fetches were in no call and on no "
            "processor; which file it was is not known",
        ),
        _mapped_remedies(measures),
        "epochs",
    )


def _mapped_remedies(measures: Measures) -> tuple[Remedy, ...]:
    """Return remedies for the largest file without reads, as the mapped file is not known."""
    rows = [row for row in measures.files if row.path and row.path_class == "data"]
    unread = [row for row in rows if row.read_bytes < (row.size_bytes or 0)]
    row = max(unread or rows, key=lambda row: row.size_bytes or 0, default=None)
    return mapped_better(row.path or "" if row else "")


def _cliff(pieces: Sequence[tuple[float, int]]) -> tuple[int, float, float]:
    """Return the change point at which the wait per step grows most: (at, before, after).

    The cut has the least squared error, as in change point detection.  before, after: seconds of
    wait per step on each side.
    """
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
    """Return how many times longer a byte takes after the cut; 0 if nothing was read before."""
    before, after = _rate(pieces[:at]), _rate(pieces[at:])
    return after / before if before else 0.0
