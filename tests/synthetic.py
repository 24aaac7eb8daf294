"""Runs written down by hand: the tables of a run, filled without a recorder.  Times in ns."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from penstock.log.layout import OPS, PHASES
from penstock.runs.run import Run
from penstock.runs.tables import PARTED, STORED

NUMBERS = {op.name: op.number for op in OPS}

COUNTED = [name for name, kind in STORED["folded"].items() if kind == "BIGINT"]
# As Run finds them: parts lie in folders.
WRITTEN = {f"{name}/00000" if name in PARTED else name: types for name, types in STORED.items()}


@dataclass
class Synthetic:
    """A run in the making; the tables are made when `connection` is first asked for."""

    rows: dict[str, list[tuple[Any, ...]]] = field(
        default_factory=lambda: {name: [] for name in WRITTEN}
    )
    files: dict[str, int] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)
    ceilings: list[dict[str, Any]] = field(default_factory=list)

    def process(
        self,
        process: int = 1,
        *,
        start: int = 0,
        end: int | None = None,
        parent: int | None = None,
        command: str = "python train.py",
        tells_delay: bool = True,
        **more: Any,
    ) -> int:
        row = {
            "rank": None,
            "world_size": None,
            "state": "exited",
            "reason": "",
            "status": None,
            "read": None,
            "folded_events": 0,
            "lost_events": 0,
            "unseen_calls": 0,
            "is_torn": False,
            "damaged_units": 0,
            "host": "node1",
            "attach_ns": 3_000_000,
            "executable": "/usr/bin/python3",
            "folder": "/work",
            "slots": 900,
            "waits_from_ns": 50_000,
            "own_calls": None,
            "own_ns": None,
            "origin": "run",
        } | more
        self.rows["processes"].append(
            (
                process,
                1000 + process,
                1,
                parent,
                row["host"],
                row["rank"],
                None,
                row["world_size"],
                row["origin"],
            )
            + (row["executable"], command, row["folder"], start, end, row["state"], row["reason"])
            + (row["status"], row["read"])
            + (row["folded_events"], row["lost_events"], row["unseen_calls"], row["attach_ns"])
            + (row["slots"], f"{process}.log", row["is_torn"], row["damaged_units"])
            + (row["waits_from_ns"], row["own_calls"], row["own_ns"])
        )
        self.rows["threads"].append((1, process, 1000 + process, "python", True))
        if tells_delay:
            self.note("run-queue delay", "measured", process)
        return process

    def worker(
        self, process: int, *, main: int = 1, start: int = 0, end: int, number: int = 0
    ) -> int:
        self.process(process, start=start, end=end, parent=main)
        self.span("worker", start, end, process=process, index=number, a=1, b=1000 + main)
        return process

    def file(
        self,
        path: str,
        *,
        path_class: str = "data",
        kind: str = "regular",
        size: int | None = None,
        inode: int | None = None,
        tier: str | None = None,
    ) -> int:
        """tier: its copy there, which is another file."""
        key = path if tier is None else f"{tier}:{path}"
        if key not in self.files:
            number = self.files[key] = len(self.files) + 1
            self.rows["files"].append(
                (number, path, path, path_class, kind, 1 if tier is None else 2)
                + (inode or number, tier, size)
            )
        return self.files[key]

    def call(
        self,
        op: str,
        start: int,
        end: int | None,
        *,
        path: str | None = "/data/a",
        moved: int = 0,
        asked: int | None = None,
        process: int = 1,
        thread: int = 1,
        errno: int = 0,
        offset: int | None = None,
        tier: str | None = None,
    ) -> None:
        file = None if path is None else self.file(path, tier=tier)
        self.rows["events/00000"].append(
            (process, thread, NUMBERS[op], errno, file, None, start)
            + (None if end is None else end - start, offset, moved if asked is None else asked)
            + (moved, None, None)
        )

    def blocked(
        self,
        op: str,
        start: int,
        end: int | None,
        *,
        by: str = "/usr/lib/libpython3.11.so.1.0",
        process: int = 1,
        thread: int = 1,
        waker: int | None = None,
        address: int | None = None,
        descriptor: str | None = None,
        received: int | None = None,
        phase: str | None = None,
        errno: int = 0,
    ) -> None:
        """A call that blocked; by: the path of the library that made it."""
        if by not in self.objects:
            number = self.objects[by] = len(self.objects)
            name = by.rpartition("/")[2]
            self.rows["objects"].append((number, name, by, name.startswith("libpython")))
        file = None
        if descriptor is not None:
            kind = descriptor.partition(":")[0]
            file = self.file(descriptor, path_class="system", kind=kind)
        self.rows["blocked/00000"].append(
            (
                process,
                thread,
                NUMBERS[op],
                errno,
                self.objects[by],
                file,
                address,
                waker,
                received,
                next((number for number, name in PHASES.items() if name == phase), None),
                start,
            )
            + (None if end is None else end - start, None)
        )

    def connected(self, endpoint: str, *, process: int = 1, **columns: Any) -> None:
        """A connection; columns as in the table, counts 0 where nothing is said."""
        known = {"process": process, "endpoint": endpoint, **columns}
        known.setdefault("connection", len(self.rows["connections"]) + 1)
        known.setdefault("connections", 1)
        counts = ("received_bytes", "sent_bytes", "receives", "sends", "answers", "first_byte_ns")
        counts += ("transfer_ns", "waited_connect_ns", "waited_send_ns", "waited_first_byte_ns")
        for name in (*counts, "waited_transfer_ns"):
            known.setdefault(name, 0)
        for name in ("is_accepted", "is_earlier", "is_loopback"):
            known.setdefault(name, False)
        row = tuple(known.pop(name, None) for name in STORED["connections"])
        assert not known, f"connections has no {', '.join(known)}"
        self.rows["connections"].append(row)

    def requested(self, endpoint: str, start_ns: int, duration_ns: int, **columns: Any) -> None:
        """A request of process 1; columns as in the table, one GET answered with 200 otherwise."""
        known: dict[str, Any] = {"process": 1, "endpoint": endpoint, "method": "GET", "status": 200}
        known |= {"request": len(self.rows["requests"]) + 1, "operation": "GET", "requests": 1}
        known |= {"start_ns": start_ns, "duration_ns": duration_ns, "client": "http.client"}
        known |= dict.fromkeys(("received_bytes", "sent_bytes", "attempt", "backoff_ns"), 0)
        known |= {"is_part": False, "is_operation": False, "first_byte_ns": duration_ns // 2}
        known |= columns
        row = tuple(known.pop(name, None) for name in STORED["requests"])
        assert not known, f"requests has no {', '.join(known)}"
        self.rows["requests"].append(row)

    def request(
        self, start: int, end: int, path: str, *, size: int = 100_000, **columns: Any
    ) -> None:
        """A GET that was answered, of store.example unless columns say otherwise."""
        known: dict[str, Any] = {
            "endpoint": "store.example:443",
            "path": path,
            "received_bytes": size,
        }
        known["first_byte_ns"] = (end - start) * 9 // 10
        known |= columns
        self.requested(known.pop("endpoint"), start, end - start, **known)

    def span(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        process: int = 1,
        thread: int = 1,
        index: int = -1,
        a: int = 0,
        b: int = 0,
        kind: str = "span",
    ) -> None:
        if end is None:
            a = b = 0
        self.rows["spans/00000"].append(
            (process, thread, kind, name, None if index < 0 else index, a, b, start)
            + (None if end is None else end - start,)
        )

    def step(self, start: int, end: int | None, index: int = 0, *, process: int = 1) -> None:
        self.span("step", start, end, process=process, index=index, kind="step")

    def wait(
        self, start: int, end: int | None, index: int, *, process: int = 1, a: int = 1
    ) -> None:
        self.span("data wait", start, end, process=process, index=index, a=a)

    def fetch(
        self,
        start: int,
        end: int | None,
        index: int,
        *,
        process: int = 2,
        a: int = 1,
        cpu: int = 0,
        delay: int | None = None,
    ) -> None:
        self.span("fetch", start, end, process=process, index=index, a=a, b=cpu)
        if delay is not None and end is not None:
            self.span("fetch delay", end, end + 1, process=process, index=index, a=a, b=delay)

    def account(
        self,
        start: int,
        end: int,
        *,
        cpu: int = 0,
        delay: int = 0,
        process: int = 1,
        thread: int = 1,
    ) -> None:
        """What the thread did in its call from start to end."""
        self.rows["spans/00000"].append(
            (process, thread, "account", None, None, cpu, delay, start, end - start)
        )

    def note(self, key: str, value: str, process: int | None = 1) -> None:
        self.rows["notes"].append((process, key, value))

    def system(self, at_ms: int, kind: str, device: str, quantity: str, value: float) -> None:
        """A sample of the host."""
        row = (at_ms * 1_000_000, "node1", kind, device, quantity, float(value))
        self.rows["system"].append(row)

    def fault(
        self,
        path: str,
        start: int,
        ns: int,
        *,
        process: int = 1,
        thread: int = 1,
        is_major: bool = True,
        offset: int = 0,
    ) -> None:
        """A page fault of a mapped file."""
        file = self.file(path)
        self.rows["faults"].append((process, thread, file, is_major, start, ns, offset))
        waited = not is_major and ns >= 10_000
        counts = (int(is_major), int(not is_major), int(waited))
        sums = (is_major * ns, (not is_major) * ns, waited * ns)
        self.rows["fault_counts"].append((process, file, *counts, *sums, ns, 1))

    def sample(self, at: int, kind: str, device: str = "", **values: float) -> None:
        """One sample of the host."""
        for quantity, value in values.items():
            self.rows["system"].append((at, "node1", kind, device, quantity, float(value)))

    def ceiling(self, mount: str, op: str, bandwidth_bps: float) -> None:
        """A tier that was measured."""
        self.ceilings.append(
            {"path": mount, "mount": mount, "kind": "ext4", "op": op, "order": "sequential"}
            | {"request_bytes": 1 << 20, "threads": 4, "bandwidth_bps": bandwidth_bps}
            | {"calls_hz": bandwidth_bps / (1 << 20), "is_cold": True, "unix_ns": 0}
        )

    def endpoint_ceiling(
        self, endpoint: str, request_bytes: int, at_once: int, bandwidth_bps: float
    ) -> None:
        """A server that was measured."""
        self.ceilings.append(
            {"path": f"https://{endpoint}/", "mount": endpoint, "kind": "remote", "op": "read"}
            | {"order": "random", "request_bytes": request_bytes, "threads": at_once}
            | {"bandwidth_bps": bandwidth_bps, "calls_hz": bandwidth_bps / request_bytes}
            | {"is_cold": False, "unix_ns": 0}
        )

    def fold(
        self, op: str, calls: int, *, path: str = "/data/a", process: int = 1, **of: int
    ) -> None:
        """Calls of which only a counter is left."""
        counts = {"calls": calls, "first_ns": 0, "last_ns": 0} | of
        self.rows["folded"].append(
            (process, self.file(path), NUMBERS[op])
            + tuple(counts.get(name, 0) for name in COUNTED)
            + (None, None)
        )

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        self.place = tempfile.TemporaryDirectory()  # removed with the run
        folder = Path(self.place.name)
        tables = folder / "tables"  # where Run keeps what it must not remove when it is closed
        empty = _without_rows()
        with duckdb.connect(config={"threads": 1}) as writer:
            for file, columns in WRITTEN.items():
                path = tables / f"{file}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                if self.rows[file]:
                    _write(writer, columns, self.rows[file], path)
                else:
                    path.write_bytes(empty[file])
        if self.ceilings:
            (folder / "ceilings.json").write_text(json.dumps(self.ceilings))
        self.run = Run(folder, tables, {"start_unix_ns": 0, "running": []}, ())
        return self.run.connection


@cache
def _without_rows() -> dict[str, bytes]:
    """The files of tables without rows, written once: a run has rows in a few of its tables."""
    with duckdb.connect(config={"threads": 1}) as writer, tempfile.TemporaryDirectory() as name:
        path = Path(name, "table.parquet")
        return {file: _write(writer, columns, [], path) for file, columns in WRITTEN.items()}


def _write(
    writer: duckdb.DuckDBPyConnection,
    columns: dict[str, str],
    rows: list[tuple[Any, ...]],
    path: Path,
) -> bytes:
    """Write a table; return the bytes of its file."""
    types = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
    writer.execute(f"CREATE OR REPLACE TABLE written ({types})")
    _insert(writer, "written", rows)
    writer.execute(f"COPY written TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    return path.read_bytes()


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[tuple[Any, ...]]) -> None:
    """All rows at once, by columns: row by row would take minutes."""
    arrays = {}
    for place, column in enumerate(zip(*rows, strict=True)):
        known = next((value for value in column if value is not None), 0)
        values = [known if value is None else value for value in column]
        arrays[f"c{place}"] = np.array(values, dtype=object if isinstance(known, str) else None)
        arrays[f"is_null{place}"] = np.array([value is None for value in column])
    if rows:
        cells = ", ".join(
            f"CASE WHEN NOT is_null{place} THEN c{place} END" for place in range(len(rows[0]))
        )
        connection.execute(f"INSERT INTO {table} SELECT {cells} FROM arrays")


MS = 1_000_000


def _read_image(
    run: Synthetic, rng: np.random.Generator, at: int, process: int, folder: str, read_ms: float
) -> int:
    """A worker opens, reads and closes one of 3,000 images; when it is done with that."""
    image = int(rng.integers(0, 3000))
    size = int(40_000 + rng.lognormal(10, 0.6))
    path = f"{folder}/n{1440764 + image % 20:08d}/n{1440764 + image % 20:08d}_{image}.JPEG"
    run.file(path, size=size)
    size = run.rows["files"][run.files[path] - 1][-1]
    for op, length, moved in (
        ("open", 0.08 + rng.exponential(0.05), 0),
        ("fstat", 0.004, 0),
        ("read", read_ms * rng.lognormal(-0.3, 0.8), size),
        ("read", 0.002, 0),
        ("close", 0.006, 0),
    ):
        end = at + max(1000, int(length * MS))
        asks = 131072 if op == "read" and not moved else size + 1
        asked = asks if op == "read" else 0
        run.call(op, at, end, path=path, moved=moved, process=process, asked=asked)
        at = end
    return at


def _save(
    run: Synthetic, rng: np.random.Generator, now: int, number: int, path: str, save_ms: float
) -> int:
    """The step loop writes a checkpoint; when it goes on."""
    run.file(path, path_class="output", size=0)
    at = now + 30 * MS
    run.call("open", now + 29 * MS, at, path=path)
    for _ in range(40):
        end = at + int(save_ms / 50 * MS * rng.uniform(0.5, 1.5))
        run.call("write", at, end, path=path, moved=2_400_000)
        at = end
    run.call("fsync", at, at + int(save_ms / 8 * MS), path=path)
    at += int(save_ms / 8 * MS)
    run.span("checkpoint", now, at + MS, index=number)
    return at + MS


def training_job(
    batches: int = 188,
    *,
    workers: int = 2,
    batch_size: int = 16,
    compute_ms: float = 80,
    read_ms: float = 2,
    decode_ms: float = 2.5,
    save_every: int = 50,
    save_ms: float = 800,
    folder: str = "/scratch/project_465001234/imagenet/train",
    output: str = "/scratch/project_465001234/runs/resnet50-baseline/checkpoints",
    seed: int = 1,
) -> Synthetic:
    """A job as PyTorch runs it: a file an image, workers that prefetch two batches, saves."""
    rng = np.random.default_rng(seed)
    run = Synthetic()
    now = 3200 * MS
    free = [now + (120 + 15 * n) * MS for n in range(workers)]
    begun = list(free)
    asked = [now + 100 * MS] * batches
    finished, spans = [], []
    run.span("loader", now, None, index=1)
    for batch in range(batches):
        number = batch % workers
        process = 2 + number
        start = max(free[number], asked[batch])
        at = start
        for _ in range(batch_size):
            at = _read_image(run, rng, at, process, folder, read_ms)
            at += int(decode_ms * MS * rng.uniform(0.6, 1.4))
        cpu = int((at - start) * 0.5)
        run.fetch(start, at, batch, process=process, cpu=cpu, delay=int((at - start) * 0.03))
        free[number] = at
        finished.append(at)
        received = max(now + 40_000, at + 600_000)
        run.wait(now, received, batch)
        step_start, now = now, received + int(compute_ms * MS * rng.uniform(0.95, 1.1))
        if batch + 2 * workers < batches:
            asked[batch + 2 * workers] = received
        spans.append((step_start, now))
        if save_every and batch % save_every == save_every - 1:
            path = f"{output}/step-{batch + 1:06d}.pt"
            now = _save(run, rng, now, batch // save_every, path, save_ms)
    ends = [end for _, end in spans[:-1]]
    for number, (start, end) in enumerate(
        zip([spans[0][0], *ends], [*ends, spans[-1][1]], strict=True)
    ):
        run.step(start, end, number)
    run.process(1, end=now + 300 * MS, command="python train.py --epochs 1 --batch-size 16")
    for number in range(workers):
        run.worker(2 + number, start=begun[number], end=now, number=number)
    for number in range(400):
        path = f"/usr/lib/python3/dist-packages/torch/_part_{number}.py"
        run.file(path, path_class="library", size=9000)
        run.call("open", number * 4 * MS, number * 4 * MS + 20_000, path=path)
        run.call("read", number * 4 * MS + 20_000, number * 4 * MS + 80_000, path=path, moved=9000)
    return run


def loop(
    run: Synthetic,
    fetch: Callable[[int, int, int], int],
    *,
    batches: int = 100,
    workers: int = 2,
    compute_ms: float = 10,
    main: int = 1,
    start: int = 1000 * MS,
    between: Callable[[int, int], int] | None = None,
    busy: float = 0.0,
    delay: float = 0.0,
    **process: Any,
) -> int:
    """A training loop in process `main`, its workers main + 1 ...; when it ends.

    fetch(at, batch, process) writes down what a worker (or without workers the main process) does
    for a batch, and says when it is done; between(now, batch) what the main process does after a
    step.  busy and delay are the shares of a fetch on a processor and waiting for one.
    """
    now = start
    free = [now] * max(1, workers)
    asked = [now] * batches
    begun = now
    for batch in range(batches):
        number = batch % max(1, workers)
        fetcher = main + 1 + number if workers else main
        at = max(free[number], asked[batch]) if workers else now
        done = fetch(at, batch, fetcher)
        cpu = int((done - at) * busy)
        run.fetch(at, done, batch, process=fetcher, cpu=cpu, delay=int((done - at) * delay))
        free[number] = done
        received = max(now + 1000, done + 1000)
        run.wait(now, received, batch, process=main)
        if workers and batch + 2 * workers < batches:
            asked[batch + 2 * workers] = received
        now = received + int(compute_ms * MS)
        run.step(received, now, batch, process=main)
        if between:
            now = between(now, batch)
    run.process(main, end=now + MS, **process)
    for number in range(workers):
        run.worker(main + 1 + number, main=main, start=begun, end=now, number=number)
    return now


def reads(
    run: Synthetic,
    at: int,
    process: int,
    *,
    path: str = "/data/a.jpg",
    n: int = 1,
    ms: float = 1,
    size: int = 60_000,
    offset: int | None = None,
    op: str = "read",
) -> int:
    """n calls one after another, `ms` each; when they are done."""
    for number in range(n):
        end = at + max(1, int(ms * MS))
        place = None if offset is None else offset + number * size
        run.call(op, at, end, path=path, moved=size if "read" in op else 0, process=process,
                 asked=size, offset=place)  # fmt: skip
        at = end
    return at
