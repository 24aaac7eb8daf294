"""A training with a wait known by construction: a loader, a fault, and the loop's own clocks.

    penstock run -q -o RUN python -m penstock_lab.diagnosed
    traceml run diagnosed.py --args JOB.json ANSWER.json

Reads the job as a line of JSON, prints "ready", waits for a line and prints the clocks; or reads
the job from a file and writes the clocks to another.

Knows loaders and faults; knows nothing of Penstock's recording and no storage.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import multiprocessing

__all__ = ["FAULTS", "LOADERS", "trained"]

BATCH = 4
DECODE_S = 0.006  # of CPU for each item: a small JPEG
STRAGGLER_S, STRAGGLER_EVERY = 0.15, 16  # an item of 16 takes so long, without a file call
LISTINGS = 3  # of the folder for an item: images, labels and masks have a folder each
START_S, PASSES = 0.2, 4  # of CPU time when a worker starts; workers start anew in each pass
REMOTE_S = 0.015  # until the first byte of each item: an object store in the same region
PAGE_BYTES = 4096
SAVE_EVERY = 5
DELAYS_EVERY = 5  # steps: reading the delays takes 1 ms
SAVED_BYTES = 45_000_000  # of a checkpoint: three layers, and 32 MB more

Item = Callable[[str], bytes]


# --- an item --------------------------------------------------------------------------------------


def _plain(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _decoded(path: str) -> bytes:
    data = _plain(path)
    end = time.thread_time() + DECODE_S
    while time.thread_time() < end:
        sum(data[:4096])
    return data


def _listed(path: str) -> bytes:
    """Look for the file in its folder first, as a data set with side files does for each item."""
    file = Path(path)
    for _ in range(LISTINGS):
        assert file in file.parent.iterdir()
    return _plain(path)


def _straggling(path: str) -> bytes:
    data = _plain(path)
    if zlib.crc32(path.encode()) % STRAGGLER_EVERY == 0:
        time.sleep(STRAGGLER_S)
    return data


def _mapped(path: str) -> bytes:
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages,
    ):
        return b"".join(pages[at : at + 64] for at in range(0, len(pages), PAGE_BYTES))


class _Remote:
    """An item from an HTTP server on this host; each thread and process has a separate
    connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.own = threading.local()

    def __getstate__(self) -> int:
        return self.port

    def __setstate__(self, port: int) -> None:
        self.__init__(port)  # type: ignore[misc]

    def __call__(self, path: str) -> bytes:
        if getattr(self.own, "pid", 0) != os.getpid():
            self.own.pid = os.getpid()
            self.own.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self.own.connection.request("GET", path)
        data: bytes = self.own.connection.getresponse().read()
        return data


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(REMOTE_S)
        data = bytes(16_384)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def _serve(port: multiprocessing.Queue[int]) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    port.put(server.server_address[1])
    server.serve_forever()


FAULTS = (
    "none", "storage", "decode", "mapped", "listing", "remote", "checkpoint", "straggler",
    "worker start",
)  # fmt: skip


@contextlib.contextmanager
def _item(fault: str) -> Iterator[Item]:
    """How an item is read, for as long as the block runs: a server runs in another process."""
    if fault != "remote":
        items = {
            "decode": _decoded, "mapped": _mapped, "listing": _listed, "straggler": _straggling,
        }  # fmt: skip
        yield items.get(fault, _plain)
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    port: multiprocessing.Queue[int] = context.Queue()
    server = context.Process(target=_serve, args=(port,), daemon=True)
    server.start()
    try:
        yield _Remote(port.get(timeout=60))
    finally:
        server.terminate()
        server.join()


# --- loaders: batches of items, in the order of the files ----------------------------------------


def _groups(files: list[str]) -> list[list[str]]:
    return [files[at : at + BATCH] for at in range(0, len(files), BATCH)]


class _Items:
    """A map-style data set."""

    def __init__(self, files: list[str], item: Item) -> None:
        self.files, self.item = files, item

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> int:
        return len(self.item(self.files[place]))


def _dataloader(files: list[str], item: Item, workers: int = 0) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    items: Any = _Items(files, item)
    loader: Iterable[Any] = DataLoader(items, BATCH, num_workers=workers)
    return loader


def _slow_start(worker: int) -> None:
    end = time.thread_time() + START_S
    while time.thread_time() < end:
        sum(range(1000))


def _started_anew(files: list[str], item: Item) -> Iterator[Any]:
    """Start two workers in each of some epochs, as without persistent_workers."""
    from torch.utils.data import DataLoader

    for at in range(PASSES):
        items: Any = _Items(files[at::PASSES], item)
        yield from DataLoader(items, BATCH, num_workers=2, worker_init_fn=_slow_start)


def _two_workers(files: list[str], item: Item) -> Iterable[Any]:
    return _dataloader(files, item, 2)


def _generator(files: list[str], item: Item) -> Iterator[Any]:
    for group in _groups(files):
        yield [len(item(path)) for path in group]


def _threads(files: list[str], item: Item) -> Iterator[Any]:
    with ThreadPoolExecutor(2) as pool:
        asked = [[pool.submit(item, path) for path in group] for group in _groups(files)]
        for group in asked:
            yield [len(future.result()) for future in group]


def _background(files: list[str], item: Item) -> Iterator[Any]:
    """A thread that reads ahead through a queue."""
    ready: queue.Queue[Any] = queue.Queue(2)

    def fill() -> None:
        for batch in _generator(files, item):
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def _background_dataloader(files: list[str], item: Item) -> Iterator[Any]:
    """A thread that reads a DataLoader ahead, as prefetch_generator does."""
    ready: queue.Queue[Any] = queue.Queue(2)

    def fill() -> None:
        for batch in _two_workers(files, item):
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def _asyncio(files: list[str], item: Item) -> Iterator[Any]:
    """Read in threads from an event loop, a batch at a time."""
    import asyncio

    loop = asyncio.new_event_loop()

    async def batch(group: list[str]) -> list[bytes]:
        return await asyncio.gather(*(asyncio.to_thread(item, path) for path in group))

    for group in _groups(files):
        yield [len(content) for content in loop.run_until_complete(batch(group))]
    loop.close()


def _fill(files: list[str], item: Item, ready: multiprocessing.Queue[Any]) -> None:
    for batch in _generator(files, item):
        ready.put(batch)
    ready.put(None)


def _process(files: list[str], item: Item) -> Iterator[Any]:
    """Another process and a queue."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    ready: multiprocessing.Queue[Any] = context.Queue(2)
    reader = context.Process(target=_fill, args=(files, item, ready), daemon=True)
    reader.start()
    while (batch := ready.get()) is not None:
        yield batch
    reader.join()


def _pipe(files: list[str], item: Item) -> Iterator[Any]:
    """Pipe files through a program; decoding or fetching elsewhere is not the program's work."""
    for group in _groups(files):
        with subprocess.Popen(["cat", *group], stdout=subprocess.PIPE) as program:
            assert program.stdout
            data = program.stdout.read()
        if item is not _plain:
            for path in group:
                item(path)
        yield len(data)


LOADERS: dict[str, Callable[[list[str], Item], Iterable[Any]]] = {
    "DataLoader": _dataloader,
    "DataLoader, 2 workers": _two_workers,
    "generator": _generator,
    "threads": _threads,
    "background thread": _background,
    "DataLoader in a thread": _background_dataloader,
    "asyncio": _asyncio,
    "process and queue": _process,
    "pipe": _pipe,
}


# --- the training --------------------------------------------------------------------------------


def _delays() -> dict[str, int]:
    """Return, by thread of this process and of its children, the ns ready to run without a CPU."""
    threads = list(Path("/proc/self/task").iterdir())
    delays = {}
    with contextlib.suppress(OSError):
        for child in [
            pid for thread in threads for pid in (thread / "children").read_text().split()
        ]:
            threads += Path("/proc", child, "task").iterdir()
    for thread in threads:
        with contextlib.suppress(OSError, IndexError, ValueError):
            delays[thread.name] = int((thread / "schedstat").read_text().split()[1])
    return delays


def trained(job: dict[str, Any], is_ready: Callable[[], None]) -> dict[str, float]:
    """Train over the files of a job; return the job's own clocks in seconds.

    wall_s: from the first batch on.  wait_s: in `next` of the outermost iterator.  save_s: in
    checkpoints.  delay_s: without a CPU though ready to run, all threads and children together.
    """
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3)))
    step_of = _traceml() if job.get("by") == "traceml" else contextlib.nullcontext
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    data = torch.ones(64, 1024)
    more = torch.ones(8_000_000)  # of a checkpoint
    wait_s = save_s = 0.0
    with _item(job["fault"]) as item, tempfile.TemporaryDirectory(dir=job["work"]) as saved:
        # Brings the pages of libraries into memory.  No module is called: a module's call would be
        # a step.
        weight = torch.ones(1024, 1024, requires_grad=True)
        torch.nn.functional.linear(data, weight).pow(2).mean().backward()
        is_ready()
        loader = _started_anew if job["fault"] == "worker start" else LOADERS[job["loader"]]
        batches = iter(loader(job["files"], item))
        next(batches)
        before = delays = _delays()
        begun = time.perf_counter()
        for step in range(1, 1 << 30):
            with step_of(model):
                optimizer.zero_grad()
                model(data).pow(2).mean().backward()
                optimizer.step()
            if job["fault"] == "checkpoint" and step % SAVE_EVERY == 0:
                at = time.perf_counter()
                with open(Path(saved) / f"step-{step}.pt", "wb") as file:
                    torch.save({"model": model.state_dict(), "more": more}, file)
                    file.flush()
                    os.fsync(file.fileno())
                save_s += time.perf_counter() - at
            at = time.perf_counter()
            is_over = next(batches, None) is None
            wait_s += time.perf_counter() - at
            if is_over:
                break
            if step % DELAYS_EVERY == 0:  # a worker's delays vanish with the worker
                delays = delays | _delays()
        delays = delays | _delays()
        wall_s = time.perf_counter() - begun
        delay_s = sum(ns - before.get(name, 0) for name, ns in delays.items()) / 1e9
        return {"wall_s": wall_s, "wait_s": wait_s, "save_s": save_s, "delay_s": delay_s}


def _traceml() -> Callable[[Any], contextlib.AbstractContextManager[Any]]:
    """Do TraceML's part in a custom loop."""
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init(mode="auto")
    step_of: Callable[[Any], contextlib.AbstractContextManager[Any]] = traceml_ai.trace_step
    return step_of


def main() -> None:
    if len(sys.argv) > 1:  # no pipes: a launcher between
        asked, answer = sys.argv[1:]
        job = json.loads(Path(asked).read_text())
        Path(answer).write_text(json.dumps(trained(job, lambda: None)))
        return
    job = json.loads(sys.stdin.readline())

    def is_ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(trained(job, is_ready)), flush=True)


if __name__ == "__main__":
    main()
