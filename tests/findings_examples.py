"""Runs whose trouble is known: one for each rule, made by hand.  Knows no rule.

The tests judge them, and docs/findings.md shows what a terminal says of them.
"""

from collections.abc import Callable
from functools import cache

from penstock.explain.measures import Measures, measure
from synthetic import MS, Synthetic, loop, reads

S = 1000 * MS


def a_file(run: Synthetic, path: str = "/data/a.jpg", size: int = 60_000) -> str:
    run.file(path, size=size)
    return path


def files_of(ms: float, *, stat_ms: float = 0.01, stats: int = 1) -> Callable[..., Synthetic]:
    """A job that opens, examines and reads a file a batch."""

    def job(**more: object) -> Synthetic:
        run = Synthetic()

        def fetch(at: int, batch: int, process: int) -> int:
            path = a_file(run, f"/data/{batch}.jpg")
            at = reads(run, at, process, op="open", ms=stat_ms, path=path)
            at = reads(run, at, process, op="stat", ms=stat_ms, path=path, n=stats)
            return reads(run, at, process, ms=ms, path=path)

        loop(run, fetch, **more)  # type: ignore[arg-type]
        return run

    return job


def big_reads(*, ceiling: float | None = None, size: int = 4_000_000) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin", size)
        return reads(run, at, process, ms=40, size=size, path=path, offset=0)

    loop(run, fetch, batches=60, workers=1, compute_ms=5)
    run.note("mount", "/\text4\t/dev/sda")
    if ceiling:
        run.ceiling("/", "read", ceiling)
    return run


def lmdb_like(offsets: Callable[[int], int], path: str = "/data/data.mdb") -> Synthetic:
    run = Synthetic()
    a_file(run, path, 1 << 30)

    def fetch(at: int, batch: int, process: int) -> int:
        for i in range(8):
            at = reads(run, at, process, path=path, op="pread", ms=3, size=8192,
                       offset=offsets(batch * 8 + i))  # fmt: skip
        return at

    loop(run, fetch, batches=60, workers=1, compute_ms=5)
    return run


def anywhere(number: int) -> int:
    """Where in a gigabyte the n-th record lies, in no order."""
    return (number * 7_919_137 + 1) % (1 << 30) // 4096 * 4096


def cliff(*, memory: int | None, slow_from: int = 60) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin", 1 << 20)
        return reads(run, at, process, ms=4 if batch < slow_from else 20, size=1 << 20, path=path)

    loop(run, fetch, batches=120, workers=0, compute_ms=10)
    if memory:
        run.note("memory_bytes", str(memory))
    return run


def twice_over(kind: str) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/mnt/data/{batch % 30}.bin", 1 << 20)
        return reads(run, at, process, ms=20, size=1 << 20, path=path)

    loop(run, fetch, batches=60, workers=0, compute_ms=10)
    run.note("mount", "/\text4\t/dev/sda")
    run.note("mount", f"/mnt\t{kind}\tserver:/export")
    return run


def mapped(faults: int, *, delay: float = 0.05) -> Synthetic:
    """Batches of 30 ms, a tenth of it on a processor, from a file that is mapped."""
    run = Synthetic()
    run.call("mmap", 1, 2, path=a_file(run, "/data/data.mdb", 1 << 30), asked=1 << 30)

    def fetch(at: int, batch: int, process: int) -> int:
        end = at + 30 * MS
        if faults:
            run.span("fetch faults", end + 2, end + 3, process=process, index=batch, a=1, b=faults)
        return end

    loop(run, fetch, batches=50, workers=1, compute_ms=5, busy=0.1, delay=delay)
    return run


def faulting(
    each_ms: float,
    *,
    faults: int = 3,
    is_major: bool = True,
    path: str = "/data/train.lmdb/data.mdb",
) -> Synthetic:
    """Batches of 30 ms, of which the thread stands still at pages of a mapped file."""
    run = Synthetic()
    a_file(run, path, 1 << 30)
    run.call("mmap", 1, 2, path=path, asked=1 << 30)
    run.note("page faults", "measured")

    def fetch(at: int, batch: int, process: int) -> int:
        for number in range(faults):
            start = at + MS + int(number * (each_ms + 1) * MS)
            run.fault(path, start, int(each_ms * MS), process=process, is_major=is_major)
        return at + 30 * MS

    loop(run, fetch, batches=50, workers=1, compute_ms=5, busy=0.1)
    return run


def unequal(slow: float) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin")
        return reads(run, at, process, ms=20 * (slow if process == 3 else 1), path=path)

    loop(run, fetch, batches=80, workers=4, compute_ms=6)
    return run


def two_ranks(slow_ms: float) -> Synthetic:
    run = Synthetic()
    for rank, ms in ((0, 10.0), (1, slow_ms)):
        loop(run, lambda at, batch, process, ms=ms: reads(run, at, process, ms=ms, size=1 << 20),
             batches=50, workers=0, compute_ms=20, main=1 + 10 * rank, rank=rank)  # fmt: skip
    return run


def each_rank_reads(share: float, passes: int = 1, ranks: int = 4) -> Synthetic:
    """Ranks that read so much of 40 files in each pass of their loaders."""
    run = Synthetic()
    n = round(40 * share)
    for rank in range(ranks):
        main = 1 + 10 * rank

        def fetch(at: int, batch: int, process: int, rank: int = rank) -> int:
            path = a_file(run, f"/data/{(rank * n + batch % n) % 40}.bin", 1 << 20)
            return reads(run, at, process, ms=20, size=1 << 20, path=path, offset=0)

        end = loop(run, fetch, batches=n * passes, workers=0, compute_ms=20, main=main, rank=rank,
                   world_size=ranks, host=f"node{1 + rank // 2}")  # fmt: skip
        for number in range(passes):
            run.span("loader", 1000 * MS + number, end, process=main, index=1 + number, a=0, b=1)
    return run


def each_worker_reads(share: float, workers: int = 4, n: int = 24) -> Synthetic:
    """An IterableDataset whose workers each read so much of the files; each finds its end once."""
    run = Synthetic()
    own = round(n * share)

    def fetch(at: int, batch: int, process: int) -> int:
        number = (process - 2) * own + batch // workers
        return reads(run, at, process, ms=20, size=1 << 20, offset=0,
                     path=a_file(run, f"/data/{number % n}.bin", 1 << 20))  # fmt: skip

    end = loop(run, fetch, batches=own * workers, workers=workers, compute_ms=5)
    for number in range(workers):
        run.fetch(end - 9, end - 6, own * workers + number, process=2 + number, cpu=1)
        run.span(
            "fetch end", end - 5, end - 4, process=2 + number, index=own * workers + number, a=1
        )
    run.span("loader", 1000 * MS, end, index=1, a=workers, b=1)
    return run


def with_tail(every: int, factor: float) -> Synthetic:
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin", 600_000)
        for i in range(10):
            is_slow = every and (batch * 10 + i) % every == 0
            at = reads(run, at, process, ms=factor if is_slow else 1, path=path)
        return at

    loop(run, fetch, batches=100, workers=0, compute_ms=5)
    return run


def crowded(kept: float, size: int = 4 << 20, crowd: int = 4) -> Synthetic:
    """Phases of one and of four (crowd) readers at once, one after the other; together they get
    `kept` of what one gets."""
    run = Synthetic()
    at = 1000 * MS
    for phase in range(40):
        readers = 1 if phase % 2 else crowd
        took = int(5 * MS * readers / (kept if readers > 1 else 1))
        until = at + 800 * MS
        while at < until:
            for reader in range(readers):
                path = a_file(run, f"/data/{reader}.bin", 1 << 30)
                begun = at + reader * took // readers
                run.call("pread", begun, begun + took, path=path, moved=size, process=2 + reader,
                         offset=0)  # fmt: skip
            at += took
    run.fetch(1000 * MS, 1100 * MS, 0, process=2, cpu=0, delay=0)
    run.wait(1000 * MS, 1100 * MS, 0)
    run.step(1100 * MS, 1100 * MS + 1, 0)
    run.fetch(1100 * MS, at, 1, process=2, cpu=0, delay=0)
    run.wait(1100 * MS + 1, at, 1)
    run.step(at, at + MS, 1)
    run.process(1, end=at + 2 * MS)
    for worker in range(crowd):
        run.worker(2 + worker, start=1000 * MS, end=at, number=worker)
    return run


def decoding(cpu: float, delay: float, cpus: int | None = None) -> Synthetic:
    run = Synthetic()
    if cpus:
        run.note("cpus", str(cpus))
    loop(run, lambda at, batch, process: at + 30 * MS, batches=60, workers=1, compute_ms=5,
         busy=cpu, delay=delay)  # fmt: skip
    return run


def decoding_by_line() -> Synthetic:
    run = decoding(0.9, 0.05)
    file = "/home/me/train.py"
    run.note("fetch line", f"65\t1040000\t{file}\t31\tPhotos.__getitem__\tPIL.Image.Image.convert")
    run.note("fetch line", f"22\t340000\t{file}\t32\tPhotos.__getitem__\t")
    return run


def saving(
    *,
    ranks: int = 1,
    size: int = 50_000_000,
    grows: int = 0,
    every: int = 20,
    ms: int = 200,
    other_bps: float = 0,
    shared: bool = False,
) -> Synthetic:
    """other_bps: what another tier was measured to write.  shared: all ranks write one path."""
    run = Synthetic()
    if other_bps:
        run.ceiling("/mnt/nvme", "write", other_bps)
    for rank in range(ranks):
        main = 1 + 10 * rank
        path = "/out/model.pt" if shared else f"/out/{rank}.pt"
        run.file(path, path_class="output", size=0)

        def save(now: int, batch: int, main: int = main, rank: int = rank, path: str = path) -> int:
            if batch % every != every - 1:
                return now
            end = now + ms * MS
            run.call("write", now, end, path=path, moved=size + rank * grows, process=main)
            run.span("checkpoint", now, end, index=batch, process=main)
            return end

        loop(run, lambda at, batch, process: at + 1000, workers=0, compute_ms=10, main=main,
             between=save, rank=rank if ranks > 1 else None)  # fmt: skip
    run.note("mount", "/\text4\t/dev/sda")
    return run


def without_steps(*, stats: int = 1, size: int = 60_000, read_ms: float = 1) -> Synthetic:
    """A program that is no training, or a foreign recording of one: half of its time is I/O."""
    run = Synthetic()
    at = 0
    for number in range(50):
        path = a_file(run, f"/data/{number}", size)
        at = reads(run, at, 1, op="open", path=path, ms=0.1, n=stats)
        at = reads(run, at, 1, path=path, ms=read_ms, size=size)
    run.process(1, end=2 * at)
    return run


def asking_again(empty_ms: float) -> Synthetic:
    """Each file is asked at its end whether there is more."""
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        path = a_file(run, f"/data/{batch}.bin")
        at = reads(run, at, process, ms=5, path=path)
        return reads(run, at, process, ms=empty_ms, size=0, path=path)

    loop(run, fetch, batches=60, workers=0, compute_ms=5)
    return run


def restarting(load_s: float) -> Synthetic:
    run = Synthetic()
    a_file(run, "/data/model.pt", 1 << 30)
    run.span("restore", MS, int(load_s * S))
    reads(run, 2 * MS, 1, path="/data/model.pt", ms=load_s * 900, size=1 << 30, offset=0)
    loop(run, lambda at, batch, process: at + 1000, workers=0, start=int(load_s * S) + MS)
    return run


def costly(cost_ns: int) -> Synthetic:
    run = files_of(1, stats=50)(batches=60)
    run.note("event_cost_ns", str(cost_ns))
    return run


def short_of_workers() -> Synthetic:
    run = files_of(30)(batches=60, workers=2, compute_ms=5, busy=0.1)
    run.note("cpus", "16")
    return run


def starting_slowly() -> Synthetic:
    run = Synthetic()
    loop(run, lambda at, batch, process: at + (3 * S if not batch else MS), batches=100,
         workers=1, compute_ms=10, busy=0.5)  # fmt: skip
    return run


def starting_remotely() -> Synthetic:
    """Of the first batch 2.4 s are a pause before a retry, 0.5 s its answers, 0.1 s a connect."""
    run = Synthetic()
    phases = {"connect": 100, "first byte": 400, "back-off": 2400, "transfer": 100}

    def fetch(at: int, batch: int, process: int) -> int:
        for phase, ms in phases.items():
            end = at + (ms * MS if not batch else 250_000)
            if phase == "back-off":
                if not batch:
                    run.blocked("sleep", at + 1000, end - 1000, process=process)
            else:
                run.blocked("receive", at, end, process=process, phase=phase,
                            descriptor="socket:store.example:443", received=9)  # fmt: skip
            if phase == "connect" and not batch:
                run.request(end, end + 400 * MS, "/list", process=process, thread=1, status=503)
                run.request(end + 2800 * MS, end + 2900 * MS, "/list", process=process, thread=1)
            at = end
        return at

    loop(run, fetch, batches=100, workers=1, compute_ms=10)
    run.connected("store.example:443", process=2, opened_ns=S, received_bytes=9000, answers=100)
    return run


def scanning(name: str, times: int, *, read_ms: float = 1.0, passes: int = 1) -> Synthetic:
    """A loader without workers whose fetches read one file so many times in each pass."""
    run, now = Synthetic(), 1000 * MS
    path = a_file(run, f"/data/{name}", 40 << 20)
    begun = now
    for number in range(passes):
        for batch in range(40):
            at = reads(run, now, 1, op="open", path=path, ms=0.01)
            for n in range(times):
                place = (batch * times + n) % 40
                at = reads(run, at, 1, path=path, ms=read_ms, size=1 << 20, offset=place << 20)
            at += 20 * MS
            run.fetch(now, at, batch, process=1, a=1 + number, cpu=19 * MS, delay=0)
            run.wait(now, at + 1000, batch, a=1 + number)
            now = at + 5 * MS
            run.step(at + 1000, now, number * 40 + batch)
    for number in range(passes):
        run.span("loader", begun + number, now, index=1 + number, a=0, b=1)
    run.process(1, end=now + MS)
    return run


def full_disk() -> Synthetic:
    """The last of five saves found no room; a shard could not be read."""
    run = Synthetic()
    run.file("/out/step-50.pt", path_class="output")

    def save(now: int, batch: int) -> int:
        if batch % 10 != 9:
            return now
        is_bad = batch > 40
        run.span("checkpoint", now, now + 8 * MS, index=batch, a=28 * is_bad, b=int(is_bad))
        path = "/out/step-50.pt"
        run.call("write", now, now + 5 * MS, path=path, moved=3_000_000)
        if is_bad:
            for n in range(3):
                run.call("write", now + (5 + n) * MS, now + (6 + n) * MS, path=path, errno=28)
        return now + 8 * MS

    loop(run, lambda at, batch, process: at + MS, batches=50, compute_ms=40, between=save)
    run.call("pread", 900 * MS, 930 * MS, path="/data/shard-7.tar", errno=5)
    return run


def listing_first() -> Synthetic:
    """3,000 files are examined, 4 ms each, before a training of a second."""
    run = Synthetic()
    at = 2 * S
    run.span("import torch", MS, at, a=1, b=S)
    for number in range(3000):
        path = a_file(run, f"/data/train/{number % 10}/{number}.jpg")
        at = reads(run, at, 1, op="stat", ms=4, path=path)
    loop(run, lambda at, batch, process: at + MS, workers=1, compute_ms=10, start=at)
    return run


def from_a_store(
    *,
    first_ms: float = 45,
    transfer_ms: float = 3,
    connect_ms: float = 0,
    at_once: int = 1,
    workers: int = 1,
    ceiling_bps: float = 0,
    late_ms: float = 0,
) -> Synthetic:
    """Batches of two objects from a store, each on a connection that is kept, or, if opening one
    takes time, on one of its own; at_once: other threads' requests that go on beside; late_ms: the
    twentieth object comes so much later."""
    run = Synthetic()
    sums = {"first_byte_ns": 0, "transfer_ns": 0, "answers": 0}
    phases = {"connect": connect_ms, "first byte": first_ms, "transfer": transfer_ms}
    opened: list[int] = []

    def fetch(at: int, batch: int, process: int) -> int:
        for _ in range(2):
            opened.append(at)
            for phase, ms in phases.items():
                is_late = phase == "first byte" and len(opened) == 20
                end = at + int((ms + late_ms * is_late) * MS)
                if ms:
                    run.blocked("receive", at, end, process=process, phase=phase,
                                descriptor="socket:store.example:443", received=9)  # fmt: skip
                at = end
            sums["first_byte_ns"] += int(first_ms * MS) * at_once
            sums["transfer_ns"] += int(transfer_ms * MS) * at_once
            sums["answers"] += at_once
        return at

    loop(run, fetch, batches=60, workers=workers, compute_ms=5)
    run.note("cpus", "16")
    if ceiling_bps:
        run.endpoint_ceiling("store.example:443", 100_000, 64, ceiling_bps)
    kept = opened if connect_ms else opened[:1]
    for at in kept:
        rest = {name: of // len(kept) for name, of in sums.items()}
        run.connected(
            "store.example:443", process=2 if workers else 1, opened_ns=at,
            counted_ns=opened[-1] + 100 * MS, connect_ns=int(connect_ms * MS),
            handshake_ns=int(connect_ms * MS / 2) or None,
            closed_ns=at + 60 * MS if connect_ms else None,
            received_bytes=rest["answers"] * 100_000, **rest,
        )  # fmt: skip
    return run


def asking_a_store(asked: Callable[[Synthetic, int, int, int], int]) -> Synthetic:
    """Batches whose worker waits for answers; asked(run, at, number, process) writes down one
    request and returns its end, for two requests a batch."""
    run = Synthetic()

    def fetch(at: int, batch: int, process: int) -> int:
        for number in (2 * batch, 2 * batch + 1):
            end = asked(run, at, number, process)
            run.blocked("receive", at, end, process=process, phase="first byte",
                        descriptor="socket:store.example:443", received=9)  # fmt: skip
            at = end
        return at

    end = loop(run, fetch, batches=60, workers=1, compute_ms=5)
    run.connected("store.example:443", process=2, opened_ns=1, connect_ns=MS, counted_ns=end,
                  answers=120, first_byte_ns=end // 2, received_bytes=12_000_000)  # fmt: skip
    return run


def refused_often(every: int, status: int = 503, *, is_counted: bool = True) -> Synthetic:
    """Each n-th request is refused, and sent again after 30 ms; is_counted: the client says so."""

    def asked(run: Synthetic, at: int, number: int, process: int) -> int:
        is_refused = number % every == every - 1
        is_told = is_refused and is_counted
        if is_refused:
            run.request(at, at + 10 * MS, f"/b/{number}", status=status, size=0, process=process)
            at += 40 * MS
        run.request(at, at + 20 * MS, f"/b/{number}", process=process, attempt=int(is_told),
                    backoff_ns=30 * MS * is_told)  # fmt: skip
        return at + 20 * MS

    return asking_a_store(asked)


def fetched_again(objects: int) -> Synthetic:
    def asked(run: Synthetic, at: int, number: int, process: int) -> int:
        run.request(at, at + 20 * MS, f"/b/{number % objects}", process=process)
        return at + 20 * MS

    return asking_a_store(asked)


def examined_first(head_ms: float) -> Synthetic:
    def asked(run: Synthetic, at: int, number: int, process: int) -> int:
        looked = at + int(head_ms * MS)
        run.request(at, looked, f"/b/{number}", method="HEAD", operation="HEAD", size=0,
                    process=process)  # fmt: skip
        run.request(looked, looked + 20 * MS, f"/b/{number}", process=process)
        return looked + 20 * MS

    return asking_a_store(asked)


def late_at_times(every: int, ms: float) -> Synthetic:
    def asked(run: Synthetic, at: int, number: int, process: int) -> int:
        end = at + int((ms if number % every == every - 1 else 10) * MS)
        run.request(at, end, f"/b/{number}", process=process)
        return end

    return asking_a_store(asked)


def in_pieces(size: int) -> Synthetic:
    def asked(run: Synthetic, at: int, number: int, process: int) -> int:
        run.request(at, at + 20 * MS, "/b/shard.parquet", process=process, size=size, status=206,
                    range_offset_bytes=number * size, range_bytes=size,
                    object_bytes=500_000_000)  # fmt: skip
        return at + 20 * MS

    return asking_a_store(asked)


# By rule: a run in which it finds something.
EXAMPLES: dict[str, Callable[[], Synthetic]] = {
    "D1": lambda: files_of(1, stat_ms=2, stats=12)(batches=40, workers=1, compute_ms=5),
    "D2": lambda: files_of(20)(batches=40, workers=1, compute_ms=5),
    "D3": lambda: big_reads(ceiling=105e6),
    "D4": lambda: lmdb_like(anywhere),
    "D5": lambda: cliff(memory=64 << 20),
    "D6": lambda: twice_over("nfs4"),
    "D7": lambda: faulting(8),
    "D8": lambda: unequal(2.5),
    "D9": lambda: with_tail(50, 40),
    "D10": lambda: each_rank_reads(1.0),
    "D12": lambda: scanning("train.tar", 20),
    "D13": lambda: each_worker_reads(1.0),
    "W1": short_of_workers,
    "W2": decoding_by_line,
    "W3": lambda: decoding(0.4, 0.5, cpus=2),
    "W4": listing_first,
    "N1": from_a_store,
    "N2": lambda: from_a_store(first_ms=2, transfer_ms=46, ceiling_bps=2.5e6),
    "N3": lambda: refused_often(4),
    "N4": lambda: fetched_again(40),
    "N5": lambda: examined_first(20),
    "N6": lambda: from_a_store(first_ms=20, connect_ms=40),
    "N7": lambda: late_at_times(20, 300),
    "N8": lambda: in_pieces(8192),
    "C1": saving,
    "C2": lambda: saving(other_bps=2e9),
    "C3": lambda: saving(ranks=4, shared=True),
    "C4": lambda: restarting(40),
    "C5": full_disk,
    "E1": lambda: asking_again(3),
    "E2": lambda: crowded(0.5),
    "F1": full_disk,
    "X1": lambda: files_of(20)(batches=20, folded_events=5000),
    "X2": lambda: costly(200_000),
}


@cache
def example(rule: str) -> Measures:
    """The measures of a rule's example; made once."""
    return measure(EXAMPLES[rule]())
