"""The rungs of the ladder: ways in which processes of a node read an LMDB, from Caffe's on.

    python -m penstock_lab.rungs      a job as JSON on standard input, the result on standard out

Executed as a separate program, so that a run begins with an empty process: no page of the file, no
thread, no counter.  The program prints "ready", waits for a line (by then the caller has evicted
the file and put the program into a control group), forks, and reports the results of each process.

The rungs after `get` are LMDBIO's six optimisations in their purpose, each added to the earlier
rung, as small as possible: measuring instruments, not readers for a training.  `feed` is for a
training.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.feed.feed import Batch

__all__ = ["RUNGS", "Rung", "RungJob", "RungResult", "main"]

Numbers = NDArray[np.int64]

COALESCED_BYTES = 4 << 20  # LMDBIO's default
SAMPLED = 16  # records compared between the rungs by content
READERS = 4  # on a node, where a rung has several
AT_ONCE = 2  # readers on the storage at once, where staggered
MERGED_GAP_BYTES = 64 << 10  # LMDB's own pages lie between records
LONGEST_S = 300.0
FEED_BYTES = 24 << 20  # of each process: three portions of a little more than COALESCED_BYTES


@dataclass(frozen=True, slots=True)
class Rung:
    """source: the reader: cursor or get (each process, py-lmdb), copy (one reader, py-lmdb), walk
    (one reader, pread; offsets by an LMDB cursor), index (as walk; by Penstock's index), feed, node
    (feed's readers for all).

    readers: processes that read for all.  coalesced: batches are read together up to 4 MiB.
    at_once: readers on the storage at a time; 0: all.  portions: 2 is double buffering.
    """

    name: str
    says: str
    source: str
    readahead: bool = True
    readers: int = 1
    coalesced: bool = False
    at_once: int = 0
    portions: int = 1
    shuffle: str = "none"


RUNGS = {
    rung.name: rung
    for rung in (
        Rung("skip", "each process walks the LMDB and skips what is not its own (Caffe)", "cursor"),
        Rung("skip-random", "the same with readahead=False", "cursor", readahead=False),
        Rung("get", "py-lmdb as a shuffled data set uses it", "get", shuffle="global"),
        Rung("get-random", "the same with readahead=False", "get", False, shuffle="global"),
        Rung("lmm", "one reader walks the LMDB and fills shared memory", "copy"),
        Rung("dio", "it reads with pread, at offsets from a walk of the LMDB", "walk"),
        Rung("index", "the offsets come from the leaf pages", "index"),
        Rung("coal", "neighbouring batches are read in one request of 4 MiB", "index",
             coalesced=True),
        Rung("readers", "several readers, each for its part of the processes", "index",
             readers=READERS, coalesced=True),
        Rung("stag", "at most two of them read at a time", "index", readers=READERS,
             coalesced=True, at_once=AT_ONCE),
        Rung("overlap", "they read the next portion while this one is used", "index",
             readers=READERS, coalesced=True, at_once=AT_ONCE, portions=2),
        Rung("feed", "penstock.feed, in order", "feed"),
        Rung("node", "penstock.feed.NodeFeed, in order: its readers serve all processes", "node"),
        Rung("feed-shuffled", "penstock.feed, shuffled as get", "feed", shuffle="global"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RungJob:
    """A run.  path: the folder of the LMDB.  batch: consecutive records of a process.  compute_s:
    slept after each batch.  seconds: afterwards nothing new is begun.  nodes: the path on each
    node; the processes are divided among the nodes."""

    rung: str
    path: str
    processes: int
    batch: int
    seconds: float
    compute_s: float = 0.0
    seed: int = 1
    nodes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RungResult:
    """The results of a process.  setup_s: before the first record, for `planned` records.  wall_s:
    from the common start, setup included.  own_cpu_s: of the thread that uses the records, or fills
    memory with records; user_s and system_s: of all threads.  sample: (record, length, CRC-32) of a
    few.  stands_for: number of parallel processes with sums here, wall_s apart."""

    role: str
    records: int
    record_bytes: int
    planned: int
    setup_s: float
    wall_s: float
    device_bytes: int
    own_cpu_s: float
    user_s: float
    system_s: float
    major_faults: int
    minor_faults: int
    voluntary_switches: int
    involuntary_switches: int
    sample: list[tuple[int, int, int]]
    stands_for: int = 1


class _Table(NamedTuple):
    """Where the records lie in the file, in key order."""

    keys: list[bytes]
    offset: Numbers
    length: Numbers


class _Shared(NamedTuple):
    """The data shared by the processes of a run."""

    job: RungJob
    rung: Rung
    table: _Table
    start: Any
    tokens: Any
    named: Any  # the messages of the node's owner to each process
    over: Any  # finished processes


# --- a run ---------------------------------------------------------------------------------------


def main() -> None:
    """Run a job: see above."""
    job = RungJob(**json.loads(sys.stdin.readline()))
    rung = RUNGS[job.rung]
    table = _table(job.path)
    _imported(rung)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # the caller is gone
    try:
        answer: dict[str, Any] = {"done": [asdict(result) for result in _run(job, rung, table)]}
    except PenstockError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


def _imported(rung: Rung) -> None:
    """Before anything is measured or forked."""
    import lmdb  # noqa: F401

    if rung.source in ("feed", "node"):
        import penstock.feed.share  # noqa: F401


def _table(path: str) -> _Table:
    from penstock.feed.index import open_index

    index = open_index(path, cache=False)
    keys = [index.key(record) for record in range(len(index))]
    return _Table(keys, index.offset, index.length)


def _run(job: RungJob, rung: Rung, table: _Table) -> list[RungResult]:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    n_nodes = max(1, len(job.nodes))
    if job.processes % n_nodes or (job.nodes and rung.source == "node"):
        raise PenstockError(f"{job.rung}: cannot be divided among {n_nodes} nodes")
    readers = min(rung.readers, job.processes // n_nodes) if rung.source in _FETCHERS else 0
    n_readers = n_nodes * readers
    shared = _Shared(
        job,
        rung,
        table,
        context.Barrier(job.processes + (n_readers or rung.source == "node")),
        context.Semaphore(rung.at_once or 1_000_000),
        context.SimpleQueue(),
        context.Semaphore(0),
    )
    works: list[Callable[[], RungResult]] = []
    if n_readers:
        for seen, ranks in _nodes(shared):
            for reader in range(readers):
                first, last = (len(ranks) * edge // readers for edge in (reader, reader + 1))
                group = ranks[first:last]
                portions = _Portions(seen, group, context)
                works.append(partial(_reader, seen, portions))
                works += [partial(_consumer, seen, portions, own) for own in group]
    else:
        loop = {"cursor": _skipping, "get": _getting, "feed": _feeding, "node": _attached}
        works = [
            partial(loop[rung.source], seen, own) for seen, ranks in _nodes(shared) for own in ranks
        ]
        if rung.source == "node":
            works.append(lambda: _owning(shared))
    return _forked(context, works, job.seconds)


def _nodes(shared: _Shared) -> Iterator[tuple[_Shared, range]]:
    """Yield each node's view, and its processes."""
    job = shared.job
    if not job.nodes:
        yield shared, range(job.processes)
        return
    each = job.processes // len(job.nodes)
    for node, path in enumerate(job.nodes):
        seen = shared._replace(job=replace(job, path=path))
        yield seen, range(node * each, (node + 1) * each)


def _forked(
    context: Any, works: Sequence[Callable[[], RungResult]], seconds: float
) -> list[RungResult]:
    """Run each work in a separate process; return the results in order."""
    from multiprocessing import connection

    lines = [context.Pipe(duplex=False) for _ in works]

    def body(work: Callable[[], RungResult], line: Any) -> None:
        try:
            line.send(work())
        except BaseException as error:
            line.send(f"{type(error).__name__}: {error}")
        line.close()

    team = [
        context.Process(target=body, args=(work, line[1]), daemon=True)
        for work, line in zip(works, lines, strict=True)
    ]
    try:
        for process, (_, sender) in zip(team, lines, strict=True):
            process.start()
            sender.close()
        results: dict[Any, RungResult] = {}
        waiting = [line for line, _ in lines]
        end_s = time.monotonic() + seconds + LONGEST_S
        while waiting:
            ready = connection.wait(waiting, max(0.0, end_s - time.monotonic()))
            if not ready:
                raise PenstockError("a process of the run did not end in time")
            for line in ready:
                results[line] = _answer(line)
                waiting.remove(line)
        return [results[line] for line, _ in lines]
    finally:
        for process in team:
            if process.is_alive():
                process.kill()
            process.join()


def _answer(line: Any) -> RungResult:
    """Return a process' answer.  Raises PenstockError with the process' error."""
    try:
        answer = line.recv()
    except EOFError:
        answer = "a process of the run was killed (out of memory?)"
    if not isinstance(answer, RungResult):
        raise PenstockError(str(answer))
    return answer


# --- the counts of each process -------------------------------------------------------------------


class _Meter:
    """Counts a process from the common start on."""

    def __init__(self, shared: _Shared, role: str, planned: int) -> None:
        self.role, self.planned = role, planned
        self.records = self.record_bytes = 0
        self.setup_s = self._wall_s = 0.0
        self.sample: list[tuple[int, int, int]] = []
        self._kept: list[tuple[int, bytes]] = []
        self._stride = max(1, len(shared.table.offset) // SAMPLED)  # the same in every rung
        shared.start.wait(LONGEST_S)
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._device = _device_bytes()
        self._own_cpu_s = time.thread_time()
        self._start = time.perf_counter()
        self.end = self._start + shared.job.seconds

    def is_ready(self) -> None:
        self.setup_s = time.perf_counter() - self._start
        self.end += self.setup_s

    def has_ended(self) -> None:
        """End the process' time: later work does not count."""
        self._wall_s = time.perf_counter() - self._start

    def is_over(self) -> bool:
        return time.perf_counter() >= self.end

    def used(self, record: int, data: bytes) -> None:
        self.records += 1
        self.record_bytes += len(data)
        if not record % self._stride:
            self._kept.append((record, data))

    def done(self) -> RungResult:
        """Return the result of this process, from the start on."""
        return self._done(resource.getrusage(resource.RUSAGE_SELF), self._usage)

    def done_of_children(self, own_cpu_s: float, n: int) -> RungResult:
        """Return the result of n children begun since the start, after their end."""
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        nothing = resource.struct_rusage([0] * len(now))
        return replace(self._done(now, nothing), own_cpu_s=own_cpu_s, stands_for=n)

    def _done(self, now: resource.struct_rusage, before: resource.struct_rusage) -> RungResult:
        import zlib

        wall = self._wall_s or time.perf_counter() - self._start
        return RungResult(
            self.role, self.records, self.record_bytes, self.planned, self.setup_s, wall,
            _device_bytes() - self._device,
            time.thread_time() - self._own_cpu_s,
            now.ru_utime - before.ru_utime,
            now.ru_stime - before.ru_stime,
            now.ru_majflt - before.ru_majflt,
            now.ru_minflt - before.ru_minflt,
            now.ru_nvcsw - before.ru_nvcsw,
            now.ru_nivcsw - before.ru_nivcsw,
            [(record, len(data), zlib.crc32(data)) for record, data in self._kept],
        )  # fmt: skip


def _device_bytes() -> int:
    """Return the bytes fetched from storage by this process: read_bytes of proc(5)."""
    with open("/proc/self/io") as file:
        for line in file:
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return 0


def _computed(job: RungJob) -> None:
    if job.compute_s:
        time.sleep(job.compute_s)


# --- each process by itself ----------------------------------------------------------------------


def _opened(shared: _Shared) -> Any:
    import lmdb

    return lmdb.open(
        shared.job.path,
        readonly=True,
        lock=False,
        readahead=shared.rung.readahead,
        subdir=Path(shared.job.path).is_dir(),
    )


def _skipping(shared: _Shared, own: int) -> RungResult:
    """Read batches own, own + P, ... of the cursor's order; step over the others."""
    job, n = shared.job, len(shared.table.offset)
    environment = _opened(shared)
    meter = _Meter(shared, "process", n)
    with environment.begin() as transaction:
        cursor = transaction.cursor()
        record, has_more = 0, cursor.first()
        while has_more and not meter.is_over():
            if record // job.batch % job.processes == own:
                meter.used(record, cursor.value())
                if (record + 1) % job.batch == 0:
                    _computed(job)
            record += 1
            has_more = cursor.next()
    return meter.done()


def _getting(shared: _Shared, own: int) -> RungResult:
    """Read each record by its key, in an order shared out by all processes."""
    job, keys = shared.job, shared.table.keys
    order = list(range(len(keys)))
    random.Random(job.seed).shuffle(order)
    environment = _opened(shared)
    meter = _Meter(shared, "process", len(order[own :: job.processes]))
    with environment.begin() as transaction:
        for number, record in enumerate(order[own :: job.processes], 1):
            if meter.is_over():
                break
            meter.used(record, transaction.get(keys[record]))
            if number % job.batch == 0:
                _computed(job)
    return meter.done()


def _feeding(shared: _Shared, own: int) -> RungResult:
    from penstock.feed import Feed, open_index

    job = shared.job
    meter = _Meter(shared, "process", len(shared.table.offset) // job.processes)
    with Feed(
        open_index(job.path, cache=False),  # as `index` finds the offsets in each run
        batch_size=job.batch,
        shuffle=shared.rung.shuffle,
        seed=job.seed,
        rank=own,
        world_size=job.processes,
        buffer_bytes=FEED_BYTES,
    ) as feed:
        meter.is_ready()
        _used(feed, meter, job)
    return meter.done()


def _used(batches: Iterable[Batch], meter: _Meter, job: RungJob) -> None:
    for batch in batches:
        for record, item in zip(batch.records.tolist(), batch, strict=True):
            meter.used(record, item.tobytes())
        _computed(job)
        if meter.is_over():
            return


def _attached(shared: _Shared, own: int) -> RungResult:
    """A rank of a NodeFeed."""
    from penstock.feed import attach

    meter = _Meter(shared, "process", len(shared.table.offset) // shared.job.processes)
    feed = attach(shared.named.get(), own)
    meter.is_ready()
    _used(feed, meter, shared.job)
    feed.close()
    done = meter.done()
    shared.over.release()
    return done


def _owning(shared: _Shared) -> RungResult:
    """Keep a NodeFeed as long as the processes use the feed, and count its readers: the process
    does nothing else."""
    from penstock.feed import NodeFeed, open_index

    job = shared.job
    meter = _Meter(shared, "reader", len(shared.table.offset))
    with NodeFeed(
        open_index(job.path, cache=False),
        job.batch,
        ranks=range(job.processes),
        world_size=job.processes,
        shuffle=shared.rung.shuffle,
        seed=job.seed,
        buffer_bytes=job.processes * FEED_BYTES,
    ) as node:
        meter.is_ready()
        for _ in range(job.processes):
            shared.named.put(node.token)
        for _ in range(job.processes):
            shared.over.acquire()
        meter.has_ended()
        readers = node.processes
        own_cpu_s = sum(map(_main_thread_cpu_s, readers))
    return meter.done_of_children(own_cpu_s, len(readers))


def _main_thread_cpu_s(process: int) -> float:
    return int(Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]) / 1e9


# --- readers that fill memory for others ---------------------------------------------------------


class _Portions:
    """Shared memory of a reader and its group of processes.

    A fetch is `rounds` batches of each process of the group; portion = fetch number % portions.
    The table of a portion has the place of each record of the fetch.
    """

    def __init__(self, shared: _Shared, group: range, context: Any) -> None:
        import mmap

        job, table = shared.job, shared.table
        self.group, self.n = group, shared.rung.portions
        mean = float(table.length.mean()) if len(table.length) else 1.0
        batches = COALESCED_BYTES / (mean * job.batch * len(group))
        self.rounds = max(1, round(batches)) if shared.rung.coalesced else 1
        self.fetches = self._planned(shared)
        most = max((_room(table, fetch) for fetch in self.fetches), default=1)
        most_records = max((len(fetch) for fetch in self.fetches), default=1)
        self.data = [mmap.mmap(-1, most) for _ in range(self.n)]
        self.places = [mmap.mmap(-1, 16 * most_records) for _ in range(self.n)]
        self.free = {own: context.Semaphore(self.n) for own in group}
        self.full = {own: context.Semaphore(0) for own in group}
        self.last = context.Value("q", -1, lock=False)  # the fetch after the last

    def _planned(self, shared: _Shared) -> list[Numbers]:
        """Return the group's part of each iteration of the whole node, `rounds` parts together."""
        job, n = shared.job, len(shared.table.offset)
        # Each group has a stretch of the data set: neighbouring batches lie side by side.
        first, last = (n * edge // job.processes for edge in (self.group.start, self.group.stop))
        step = job.batch * len(self.group) * self.rounds
        return [np.arange(start, min(start + step, last)) for start in range(first, last, step)]


def _room(table: _Table, fetch: Numbers) -> int:
    """Return the most bytes of a fetch: whole, with the gaps, or record by record."""
    starts, ends = _runs(table, fetch)
    return int((ends - starts).sum() + table.length[fetch].sum() + 4096)


def _runs(table: _Table, fetch: Numbers) -> tuple[Numbers, Numbers]:
    """Return the stretches of the file for a fetch: close records are read with their gaps."""
    sort = np.argsort(table.offset[fetch], kind="stable")
    start = table.offset[fetch][sort]
    reach = np.maximum.accumulate(start + table.length[fetch][sort])
    is_new = np.append(True, start[1:] - reach[:-1] > MERGED_GAP_BYTES)
    firsts = np.flatnonzero(is_new)
    return start[firsts], reach[np.append(firsts[1:], len(start)) - 1]


def _reader(shared: _Shared, portions: _Portions) -> RungResult:
    fetcher = _FETCHERS[shared.rung.source](shared, portions)
    meter = _Meter(shared, "reader", sum(map(len, portions.fetches)))
    fetch_into = next(fetcher)
    meter.is_ready()
    number = 0
    for number, fetch in enumerate([*portions.fetches, None]):
        for own in portions.group:
            portions.free[own].acquire()
        if fetch is None or meter.is_over():
            break
        portion = number % portions.n
        places = np.frombuffer(portions.places[portion], np.int64)[: 2 * len(fetch)]
        with shared.tokens:
            fetch_into(fetch, portions.data[portion], places.reshape(-1, 2))
        for own in portions.group:
            portions.full[own].release()
    portions.last.value = number
    for own in portions.group:
        portions.full[own].release()
    return meter.done()


def _consumer(shared: _Shared, portions: _Portions, own: int) -> RungResult:
    """Copy the batches out of the portions, as a loader does before handing batches on."""
    job, mine = shared.job, own - portions.group.start
    share = job.batch * len(portions.group)
    meter = _Meter(shared, "process", len(shared.table.offset) // job.processes)
    number = 0
    while True:
        portions.full[own].acquire()
        if portions.last.value == number:
            return meter.done()
        fetch, portion = portions.fetches[number], number % portions.n
        places = np.frombuffer(portions.places[portion], np.int64)[: 2 * len(fetch)].reshape(-1, 2)
        data = portions.data[portion]
        for batch in range(mine * job.batch, len(fetch), share):
            for item in range(batch, min(batch + job.batch, len(fetch))):
                start, length = int(places[item, 0]), int(places[item, 1])
                meter.used(int(fetch[item]), data[start : start + length])
            _computed(job)
        portions.free[own].release()
        number += 1


Fetch = Callable[[Numbers, Any, Numbers], None]


def _copying(shared: _Shared, portions: _Portions) -> Iterator[Fetch]:
    """LMM: the cursor of a single process instead of all; records are copied out of the mapping."""
    environment = _opened(shared)
    with environment.begin(buffers=True) as transaction:
        cursor = transaction.cursor()

        def fetch_into(fetch: Numbers, data: Any, places: Numbers) -> None:
            place = 0
            for item, record in enumerate(fetch):
                if not item:
                    cursor.set_key(shared.table.keys[int(record)])
                value = cursor.value()
                data[place : place + len(value)] = value
                places[item] = place, len(value)
                place += len(value)
                cursor.next()

        yield fetch_into


def _reading(
    shared: _Shared, portions: _Portions, find: Callable[[_Shared], _Table]
) -> Iterator[Fetch]:
    """DIO and after: pread of stretches into the portion."""
    file = _file_of(shared.job.path)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    tables: list[_Table] = []

    def fetch_into(fetch: Numbers, data: Any, places: Numbers) -> None:
        table = tables[0]
        starts, ends = _runs(table, fetch)
        begins = np.append(0, np.cumsum(ends - starts))
        view = memoryview(data)
        for start, end, begin in zip(starts.tolist(), ends.tolist(), begins.tolist(), strict=False):
            at = start
            while at < end:
                got = os.preadv(descriptor, [view[begin + at - start : begin + end - start]], at)
                if not got:
                    raise PenstockError(f"{file}: ends at byte {at}: it changed while it was read")
                at += got
        run = np.searchsorted(starts, table.offset[fetch], side="right") - 1
        places[:, 0] = begins[run] + table.offset[fetch] - starts[run]
        places[:, 1] = table.length[fetch]

    def ready() -> Fetch:
        tables.append(find(shared))
        return fetch_into

    yield ready()


def _walked(shared: _Shared) -> _Table:
    """Return offsets found as in DIO: through the cursor, one record after the other."""
    environment = _opened(shared)
    offsets, lengths = [], []
    with environment.begin(buffers=True) as transaction:
        for value in transaction.cursor().iternext(keys=False, values=True):
            offsets.append(np.frombuffer(value, np.uint8).ctypes.data)
            lengths.append(len(value))
    base = _mapped_at(_file_of(shared.job.path))
    table = _Table(
        shared.table.keys, np.array(offsets, np.int64) - base, np.array(lengths, np.int64)
    )
    if not np.array_equal(table.offset, shared.table.offset):
        raise PenstockError(f"{shared.job.path}: the walk and the index disagree on the offsets")
    return table


def _file_of(path: str) -> str:
    return str(Path(path) / "data.mdb") if Path(path).is_dir() else path


def _mapped_at(name: str) -> int:
    real = os.path.realpath(name)
    with open("/proc/self/maps") as file:
        for line in file:
            parts = line.rstrip("\n").split(maxsplit=5)
            if len(parts) == 6 and parts[5] == real and int(parts[2], 16) == 0:
                return int(parts[0].partition("-")[0], 16)
    raise PenstockError(f"{real}: not mapped, so its records have no offsets")


def _indexed(shared: _Shared) -> _Table:
    """The leaf pages again, in the measured time and with cold pages."""
    from penstock.feed.index import open_index

    index = open_index(shared.job.path, cache=False)
    return _Table(shared.table.keys, index.offset, index.length)


_FETCHERS: dict[str, Callable[[_Shared, _Portions], Iterator[Fetch]]] = {
    "copy": _copying,
    "walk": lambda shared, portions: _reading(shared, portions, _walked),
    "index": lambda shared, portions: _reading(shared, portions, _indexed),
}


if __name__ == "__main__":
    main()
