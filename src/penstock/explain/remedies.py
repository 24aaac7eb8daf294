"""Remedies for a finding, in the words of the run's loader and file format.

Knows measures, and the vocabulary of loaders and formats; judges nothing.  For an unknown loader or
format the words are neutral.
"""

import shlex
from dataclasses import dataclass

from penstock.explain.measures import FileTotal, Measures
from penstock.words import show

__all__ = [
    "FASTER_TIER",
    "MANY_FILES",
    "NAME_THE_TIER",
    "ONCE",
    "PACK",
    "PROFILER",
    "RUN",
    "SHORTER_CODE",
    "STAGE",
    "Format",
    "Remedy",
    "by_index",
    "fewer_threads",
    "for_metadata",
    "for_small_reads",
    "format_of",
    "further_ahead",
    "mapped_better",
    "more_at_once",
    "more_workers",
    "once_a_pass",
    "share_each",
]

# Stands for the run folder in a command, until a report names the folder.  No path can contain a
# NUL, so a user's folder with the name RUN is never confused.
RUN = "\0RUN\0"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy: in words, and as a command in which RUN stands for the run folder.

    word: the part of Penstock that applies the remedy ("whatif", "feed", "stage", "save"), or the
    thing to change ("loader", "code", "job").  command: "" without a command.
    """

    word: str
    says: str
    command: str = ""


FASTER_TIER = Remedy(
    "whatif",
    "measure what a faster tier would bring: memory first, as the upper bound",
    f"penstock whatif {RUN} --tier /dev/shm",
)
# A plan predicts the gain of copies, but makes no copies.
NAME_THE_TIER = "; first name a folder there: `penstock tiers add fast FOLDER`"
STAGE = Remedy(
    "stage",
    "read the files that were waited for longest from copies on a faster tier; the program stays "
    f"as it is{NAME_THE_TIER}",
    f"penstock stage plan {RUN} --to fast",
)
PACK = Remedy("code", "pack the files into few large ones (LMDB, tar, TFRecord), read in order")
ONCE = Remedy("code", "list and examine files once, keep the list; open each file once")
KEEP_OPEN = Remedy("code", "open each file once and keep it open, in each process that reads it")
PROFILER = Remedy(
    "code", "not I/O: a CPU profiler shows which code it is: decoding, decompressing, transforms"
)
SHORTER_CODE = Remedy(
    "code", "not I/O: shorten these lines: a faster library, or their results stored once in files"
)


# --- the loader's words --------------------------------------------------------------------------

# By loader, named as the loader's adapter: the top-level package.
MORE_AT_ONCE = {
    "torch": "more reads at once: more workers (DataLoader(num_workers=…)), or threads in each",
    "tensorflow": "more reads at once: interleave and map with num_parallel_calls=tf.data.AUTOTUNE",
    "grain": "more reads at once: grain.ReadOptions(num_threads=…), or more worker processes",
}
FURTHER_AHEAD = {
    "torch": "fetch further ahead: DataLoader(prefetch_factor=4 or more), with workers",
    "tensorflow": "fetch further ahead: prefetch(tf.data.AUTOTUNE) at the end of the pipeline",
    "grain": "fetch further ahead: grain.ReadOptions(prefetch_buffer_size=…)",
}
SHARE_EACH = {
    "torch": "give each rank its share: DataLoader(sampler=DistributedSampler(data)), or shards by "
    "rank",
    "tensorflow": "give each rank its share: tf.data.Dataset.shard(number of ranks, rank)",
    "grain": "give each rank its share: grain.ShardOptions(shard_index=…, shard_count=…)",
}
FEWER_THREADS = {
    "torch": "ask for more CPUs (Slurm: --cpus-per-task), or take fewer workers; if other programs "
    "use the CPUs too, run the job where they do not",
    "tensorflow": "ask for more CPUs (Slurm: --cpus-per-task), or fewer threads: "
    "tf.data.Options().threading.private_threadpool_size",
}


def _in_words(measures: Measures, words: dict[str, str], neutral: str) -> str:
    """Return the words for the run's loader, or neutral words for several or unknown loaders."""
    (loader,) = measures.loaders if len(measures.loaders) == 1 else ("",)
    return words.get(loader, neutral)


def more_at_once(measures: Measures) -> Remedy:
    """Return the remedy of more concurrent reads."""
    neutral = "more reads at once: threads or processes that read ahead of the training"
    return Remedy("loader", _in_words(measures, MORE_AT_ONCE, neutral))


def more_workers(measures: Measures, n: int) -> Remedy:
    """Return the remedy of `n` concurrent workers."""
    is_torch = measures.loaders in ((), ("torch",))
    return Remedy("loader", f"DataLoader(num_workers={n})" if is_torch else f"{n} workers")


def further_ahead(measures: Measures) -> Remedy:
    """Return the remedy of a longer queue of batches, to outlast a slow read."""
    neutral = "read further ahead of the training, so that a slow read is over when it is needed"
    return Remedy("loader", _in_words(measures, FURTHER_AHEAD, neutral))


def share_each(measures: Measures) -> tuple[Remedy, ...]:
    """Return the remedies of a part of the data set for each rank."""
    neutral = "give each rank its share of the data set: every n-th file or record"
    share = Remedy("loader", _in_words(measures, SHARE_EACH, neutral))
    if measures.loaders != ("torch",):
        return (share,)
    says = "one reader for the ranks of a node: penstock.adapters.torch.node_feed"
    return (share, Remedy("feed", says))


def fewer_threads(measures: Measures) -> Remedy:
    """Return the remedy of more CPUs, or fewer threads."""
    neutral = "ask for more CPUs (Slurm: --cpus-per-task), or fewer reader threads and processes"
    return Remedy("job", _in_words(measures, FEWER_THREADS, neutral))


# --- the format's words --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of files, recognised by name.

    is_indexed: penstock.feed finds single records in the file.  again: why bytes are read again in
    an epoch, with advice.  larger: how a batch takes fewer reads.  mapped: how to read without a
    page fault per page.  "" without specific advice.  is_decoded: bytes read again are decoded
    again, on a CPU.
    """

    name: str
    suffixes: tuple[str, ...]
    is_indexed: bool = False
    again: str = ""
    larger: str = ""
    mapped: str = ""
    is_decoded: bool = False


FORMATS = (
    Format(
        "LMDB",
        (".mdb", ".lmdb"),
        is_indexed=True,
        mapped="for reading in order let the kernel read ahead: lmdb readahead=True",
    ),
    Format(
        "compressed file",
        (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4"),
        again="a seek in a compressed file reads and decompresses it from its begin: read it in "
        "order, keep it decompressed, or compress records one by one",
        larger="read it in order, in large pieces, and keep what a batch needs",
        is_decoded=True,
    ),
    Format(
        "tar",
        (".tar",),
        is_indexed=True,
        again="the archive is opened and scanned from its begin: keep it open and its list of "
        "members, or read by an index of them",
        is_decoded=True,
    ),
    Format("TFRecord", (".tfrecord", ".tfrecords"), is_indexed=True),
    Format(
        "HDF5",
        (".h5", ".hdf5", ".he5", ".h5ad", ".nc", ".nc4"),
        again="a chunk is read whole for each sample in it and does not stay in the chunk cache: "
        "h5py.File(path, rdcc_nbytes=…) that holds the chunks in use, a smaller chunk shape "
        "(create_dataset(chunks=…): a sample or a batch), or samples in the order of the chunks",
        larger="a chunk shape of a whole batch, read in the order of the chunks: "
        "create_dataset(chunks=…)",
        is_decoded=True,
    ),
    Format(
        "npz",
        (".npz",),
        again="numpy.load of an npz reads a whole array for each access: load each file once, or "
        "keep arrays as .npy files opened with mmap_mode",
        is_decoded=True,
    ),
    Format(
        "zip",
        (".zip",),
        again="the archive's directory is read anew with each open: open it once in each process",
        larger="open it once in each process, and read members in the order they lie in",
        is_decoded=True,
    ),
    Format(
        "Parquet",
        (".parquet", ".pq"),
        again="a row group is read whole for each row: smaller row groups, or rows in the order of "
        "the file",
        larger="larger row groups, read whole and in order",
        is_decoded=True,
    ),
    Format(
        "Arrow",
        (".arrow", ".feather", ".ipc"),
        larger="read record batches in order, many rows at a time",
        mapped="read rows in the order of the file and shuffle in a buffer, or read record batches "
        "by calls (pyarrow.OSFile) instead of a mapping; what fits may be kept in memory",
    ),
    Format(
        "safetensors",
        (".safetensors",),
        mapped="read the file by calls, whole and in order, where its tensors fit the memory: "
        "safetensors.torch.load(open(path, 'rb').read())",
    ),
    Format(
        "array file",
        (".npy", ".bin", ".dat", ".raw", ".idx", ".memmap"),
        larger="read many neighbouring records with one call, and shuffle blocks of them",
        mapped="read records by calls at their offsets, several at once (os.pread, "
        "numpy.fromfile), or let the kernel fetch them first: mmap.madvise(mmap.MADV_WILLNEED)",
    ),
    Format(
        "SQLite",
        (".sqlite", ".sqlite3", ".db"),
        larger="ask for a batch of rows in one query, in the order of their keys",
        mapped="read by calls: PRAGMA mmap_size=0, with a larger PRAGMA cache_size",
    ),
)
UNKNOWN = Format("file", ())


def format_of(path: str) -> Format:
    """Return the format of a path by the ending."""
    name = path.lower().rsplit("/", 1)[-1]
    for kind in FORMATS:
        if name.endswith(kind.suffixes):
            return kind
    return UNKNOWN


def _waited_for(measures: Measures) -> FileTotal | None:
    """Return the read file with the longest wait of the step loop.

    Without waits, the file with the most bytes read.
    """
    rows = [row for row in measures.files if row.path and row.read_bytes]
    return max(
        rows,
        key=lambda row: (row.blocking_s or 0.0, row.read_bytes, row.size_bytes or 0),
        default=None,
    )


def by_index(measures: Measures, path: str | None = None) -> tuple[Remedy, ...]:
    """Return the remedy of reading by an index of records, for a container format with an index.

    path: None means the file with the longest wait.
    """
    row = _waited_for(measures)
    path = path or (row.path if row else None)
    if not path or not format_of(path).is_indexed:
        return ()
    says = "read by an index of its records, many requests at once: penstock.feed"
    return (Remedy("feed", says, f"penstock feed bench {shlex.quote(path)}"),)


MANY_FILES = 64  # fewer files are no folder of samples: packing saves too few opens


def for_small_reads(measures: Measures, n_files: int) -> tuple[Remedy, ...]:
    """Return remedies for small reads: an index, larger reads of the format, or packed files."""
    row = _waited_for(measures)
    kind = format_of(row.path) if row and row.path else UNKNOWN
    if indexed := by_index(measures):
        return indexed
    if kind.larger:
        return (Remedy("code", kind.larger),)
    if n_files >= MANY_FILES:
        return (PACK,)
    return (Remedy("code", "larger reads: many neighbouring samples with one call"),)


def for_metadata(measures: Measures) -> tuple[Remedy, ...]:
    """Return remedies for opens and look-ups: pack files that are opened once."""
    seen = measures.metadata
    reopened = seen.opens > 2 * max(1, seen.files)
    remedies = [KEEP_OPEN if reopened else ONCE]
    if seen.files >= MANY_FILES:
        remedies.append(PACK)
    if reopened and seen.files < MANY_FILES:
        remedies += by_index(measures)
    return tuple(remedies)


def mapped_better(path: str) -> tuple[Remedy, ...]:
    """Return remedies for reading a mapped file without a stop at each page."""
    kind = format_of(path)
    remedies = []
    if kind.is_indexed:
        says = "read by an index of its records, many requests at once: penstock.feed"
        remedies.append(Remedy("feed", says, f"penstock feed bench {shlex.quote(path)}"))
    if kind.mapped:
        remedies.append(Remedy("code", kind.mapped))
    if not remedies:
        says = "read records by calls at their offsets, several at once: os.pread"
        remedies.append(Remedy("code", says))
    return tuple(remedies)


def once_a_pass(measures: Measures, path: str, size_bytes: int) -> tuple[Remedy, ...]:
    """Return remedies for reading a file's bytes once per epoch."""
    kind = format_of(path)
    neutral = (
        f"read only the bytes that a sample needs, or keep the {show(size_bytes, 'B')} in memory"
    )
    return (
        Remedy("code", kind.again or neutral),
        *by_index(measures, path),
    )
