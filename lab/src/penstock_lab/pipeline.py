"""A training job's input and nothing else: threads that read, decode and resize files, batches
fetched ahead, a step that computes.  A program of `places.answer_of`.

Knows files and a job; knows no storage and no study.  With prefetch 0 nothing is read during a
step's computing; with n, at most n batches.  Other loaders (tf.data, torch) get equal files and
work; `tfrecord` is tf.data over files of many records.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock_lab.needs import imported

__all__ = ["LOADERS", "MODELS", "WORKS", "PipelineJob", "PipelineResult", "files_below", "trained"]

# stand-in: read, unpacked if a NumPy archive, and replaced by a picture of zeros, as in benchmarks
# without decoding.
WORKS = ("read", "decode", "resize", "stand-in")
LOADERS = ("threads", "torch", "tf.data", "tfrecord")
MODELS = ("sleep", "alexnet", "alexnet-tensorflow")


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """files: in the order of an epoch before the shuffle.  steps: at most; 0: whole epochs.  calls,
    buffer, record_bytes: of `tfrecord`, batches worked on at once; records in the draw of the next
    (0: in order); a record's mean, as no record is counted there.  side: of resized pictures.
    read_bytes: of a call; 0: the whole file in one call, and an empty call at the end, as in
    TensorFlow.  compute_s: of each step, slept; `alexnet` computes.  window_steps: a recording is
    stopped and begun again after so many (0: no recording here); the folders are numbered below
    `record`."""

    files: tuple[str, ...]
    threads: int = 1
    work: str = "read"
    batch: int = 32
    prefetch: int = 0
    compute_s: float = 0.0
    epochs: int = 1
    steps: int = 0
    seed: int = 1
    side: int = 64
    read_bytes: int = 0
    loader: str = "threads"
    model: str = "sleep"
    is_shuffled: bool = True
    calls: int = 1
    buffer: int = 0
    record_bytes: float = 0.0
    window_steps: int = 0
    record: str = ""


@dataclass(slots=True)
class PipelineResult:
    """Sums over all steps, and each step: the time with a batch and the time at the end, by
    time.time, the wait, and the bytes."""

    samples: int = 0
    read_bytes: int = 0
    wall_s: float = 0.0
    wait_s: float = 0.0
    compute_s: float = 0.0
    cpu_s: float = 0.0
    window_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    step_bytes: list[int] = field(default_factory=list)
    epochs_s: list[float] = field(default_factory=list)
    windows: list[str] = field(default_factory=list)


def files_below(folder: Path) -> list[Path]:
    """Return every file of a data set, in order, without the description."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")


# --- a sample -------------------------------------------------------------------------------------


def _read(path: str, read_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = read_bytes or max(1, os.fstat(descriptor).st_size)
        parts, at = [], 0
        while part := os.pread(descriptor, size, at):
            parts.append(part)
            at += len(part)
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _sample_of(job: PipelineJob) -> Callable[[str], tuple[int, Any]]:
    """Return a thread's work for a file: the bytes, and the part of a batch."""
    if job.work == "read":

        def reading(path: str) -> tuple[int, Any]:
            data = _read(path, job.read_bytes)
            return len(data), data

        return reading
    if job.work == "stand-in":
        return _standing_in(job)
    import numpy as np

    pillow = imported("PIL.Image", "decoding")
    side = (job.side, job.side)

    def decoding(path: str) -> tuple[int, Any]:
        data = _read(path, job.read_bytes)
        with pillow.open(io.BytesIO(data)) as picture:
            whole = picture.convert("RGB")
        small = whole.resize(side) if job.work == "resize" else whole
        return len(data), np.asarray(small)

    return decoding


def _standing_in(job: PipelineJob) -> Callable[[str], tuple[int, Any]]:
    import numpy as np

    picture = np.zeros((job.side, job.side), np.uint8)

    def reading(path: str) -> tuple[int, Any]:
        if not path.endswith(".npz"):
            return len(_read(path, job.read_bytes)), picture
        with np.load(path) as archive:  # never pickles: allow_pickle is off
            return sum(archive[name].nbytes for name in archive.files), picture

    return reading


# --- batches -------------------------------------------------------------------------------------

Batches = Iterator[tuple[int, list[Any]]]


def _ordered(job: PipelineJob, epoch: int) -> list[str]:
    files = list(job.files)
    if job.is_shuffled:
        random.Random(job.seed + epoch).shuffle(files)
    return files[: job.steps * job.batch] if job.steps else files


def _by_threads(job: PipelineJob) -> Iterator[Batches]:
    """Batches of each epoch, in order, by a pool of threads."""
    sample = _sample_of(job)
    with ThreadPoolExecutor(job.threads) as team:
        list(team.map(time.sleep, [0.001] * job.threads))  # all threads are there
        for epoch in range(job.epochs):
            yield _batches(job, team, sample, _ordered(job, epoch))


def _batches(
    job: PipelineJob, team: ThreadPoolExecutor, sample: Callable[[str], Any], files: Sequence[str]
) -> Batches:
    waiting: deque[Future[Any]] = deque()
    left = iter(files)

    def ask(most: int) -> None:
        while len(waiting) < most:
            path = next(left, None)
            if path is None:
                return
            waiting.append(team.submit(sample, path))

    for first in range(0, len(files), job.batch):
        size = min(job.batch, len(files) - first)
        made: list[Any] = []
        moved = 0
        for place in range(size):
            ask(size - place + job.prefetch * job.batch)
            n_bytes, value = waiting.popleft().result()
            moved += n_bytes
            made.append(value)
        ask(job.prefetch * job.batch)
        yield moved, made


def _by_torch(job: PipelineJob) -> Iterator[Batches]:
    """torch.utils.data.DataLoader: a process in place of each thread."""
    torch_data = imported("torch.utils.data", "the loader torch")
    sample = _sample_of(job)

    class OrderedFiles:
        def __init__(self, paths: Sequence[str]) -> None:
            self.paths = paths

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, number: int) -> Any:
            return sample(self.paths[number])

    for epoch in range(job.epochs):
        ahead = {"prefetch_factor": max(1, job.prefetch)} if job.threads else {}
        loader: Any = torch_data.DataLoader(
            OrderedFiles(_ordered(job, epoch)),  # type: ignore[arg-type, unused-ignore]  # has both
            batch_size=job.batch, num_workers=job.threads, collate_fn=_collated, **ahead,
        )  # fmt: skip
        yield _started(loader)


def _started(loader: Any) -> Batches:
    """Start the loader's processes at the first batch, not before: the processes read from their
    start."""
    yield from loader


def _collated(samples: list[tuple[int, Any]]) -> tuple[int, Any]:
    """Return pictures of equal size as a tensor, made in shared memory for the way between
    processes."""
    from torch.utils.data import default_collate

    values = [value for _, value in samples]
    shapes = {getattr(value, "shape", None) for value in values}
    batch: Any = values
    if len(shapes) == 1 and None not in shapes:
        batch = default_collate(values)
    return sum(n_bytes for n_bytes, _ in samples), batch


def _tensorflow(what: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return imported("tensorflow", what)


def _by_tensorflow(job: PipelineJob) -> Iterator[Batches]:
    """tf.data: read_file, decode_jpeg and resize in a parallel map, batch, prefetch."""
    tf = _tensorflow("the loader tf.data")

    def sample(path: Any) -> Any:
        data = tf.io.read_file(path)
        size = tf.strings.length(data)
        if job.work == "read":
            return size, size
        picture = tf.image.decode_jpeg(data, channels=3)
        if job.work == "resize":
            return size, tf.image.resize(picture, (job.side, job.side))
        return size, tf.shape(picture)  # pictures of many sizes make no batch

    for epoch in range(job.epochs):
        paths = tf.data.Dataset.from_tensor_slices(_ordered(job, epoch))
        made = paths.map(sample, num_parallel_calls=job.threads, deterministic=True)
        made = made.batch(job.batch)
        if job.prefetch:
            made = made.prefetch(job.prefetch)
        yield ((int(sizes.numpy().sum()), list(values)) for sizes, values in made)


def _by_records(job: PipelineJob) -> Iterator[Batches]:
    """Return batches of tf.data over TFRecord files: as many files at once as threads; left-over
    batches are dropped.

    The job is dlio_benchmark's, call for call: a function in Python parses each batch and returns a
    fixed picture; batches worked on at once are read ahead too.  Nothing more is asked of a batch
    than there, not even the length: to stack a tensor of cosmoflow's took a fifth more CPU time
    than all of dlio_benchmark's work on the batch.
    """
    tf = _tensorflow("reading TFRecord files")
    picture = tf.zeros((job.side, job.side), tf.uint8)
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "size": tf.io.FixedLenFeature([], tf.int64),
    }

    def parsed(batch: Any) -> Any:
        tf.io.parse_example(batch, features)
        return picture

    for epoch in range(job.epochs):
        files = list(job.files)
        if job.is_shuffled:
            random.Random(job.seed + epoch).shuffle(files)
        made = tf.data.TFRecordDataset(files, num_parallel_reads=job.threads)
        made = made.shuffle(job.buffer, seed=job.seed + epoch) if job.buffer else made
        made = made.batch(job.batch, drop_remainder=True)
        made = made.map(
            lambda batch: tf.py_function(parsed, [batch], [tf.uint8]),
            num_parallel_calls=job.calls,
        )
        made = made.take(job.steps) if job.steps else made
        made = made.prefetch(job.prefetch) if job.prefetch else made
        moved = round(job.batch * job.record_bytes)
        yield ((moved, [given] * job.batch) for (given,) in made)


_LOADERS: dict[str, Callable[[PipelineJob], Iterator[Batches]]] = {
    "threads": _by_threads,
    "torch": _by_torch,
    "tf.data": _by_tensorflow,
    "tfrecord": _by_records,
}


# --- steps ---------------------------------------------------------------------------------------


def _slept(job: PipelineJob) -> Callable[[list[Any]], None]:
    def compute(batch: list[Any]) -> None:
        if job.compute_s:
            time.sleep(job.compute_s)

    return compute


def _alexnet(job: PipelineJob) -> Callable[[list[Any]], None]:
    """Return AlexNet's five convolutions and three dense layers, a step of SGD, on the CPU."""
    import numpy as np

    torch = imported("torch", "the model alexnet")
    nn = torch.nn
    torch.manual_seed(job.seed)
    layers: list[Any] = []
    shapes = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1))
    for number, (narrow, wide, kernel, stride, around) in enumerate(
        (*shapes, (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
    ):
        layers += [nn.Conv2d(narrow, wide, kernel, stride, around), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2)] if number in (0, 1, 4) else []
    dense = [nn.Linear(256 * 36, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(6), nn.Flatten(), *dense, nn.Linear(4096, 102)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def compute(batch: list[Any]) -> None:
        pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in batch])).float()
        answer = model(pixels.permute(0, 3, 1, 2) / 255)
        loss = nn.functional.cross_entropy(answer, torch.zeros(len(batch), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return compute


def _alexnet_tensorflow(job: PipelineJob) -> Callable[[list[Any]], None]:
    """The same in TensorFlow."""
    import numpy as np

    tf = _tensorflow("the model alexnet-tensorflow")
    keras = tf.keras
    keras.utils.set_random_seed(job.seed)
    layers: list[Any] = [keras.Input((job.side, job.side, 3))]
    for number, (wide, kernel, stride) in enumerate(
        ((64, 11, 4), (192, 5, 1), (384, 3, 1), (256, 3, 1), (256, 3, 1))
    ):
        around = {"padding": "same", "activation": "relu"}
        layers.append(keras.layers.Conv2D(wide, kernel, strides=stride, **around))
        layers += [keras.layers.MaxPool2D(3, 2)] if number in (0, 1, 4) else []
    layers.append(keras.layers.Flatten())
    layers += [keras.layers.Dense(4096, activation="relu") for _ in range(2)]
    model = keras.Sequential([*layers, keras.layers.Dense(102)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.001), loss=loss)

    def compute(batch: list[Any]) -> None:
        pixels = np.stack([np.asarray(picture) for picture in batch]).astype(np.float32) / 255
        model.train_on_batch(pixels, np.zeros(len(batch), np.int64))

    # The first call traces the model, and belongs to no step.
    compute([np.zeros((job.side, job.side, 3), np.uint8)] * job.batch)
    return compute


_MODELS: dict[str, Callable[[PipelineJob], Callable[[list[Any]], None]]] = {
    "sleep": _slept,
    "alexnet": _alexnet,
    "alexnet-tensorflow": _alexnet_tensorflow,
}


class _Windows:
    """A recording, stopped and begun again every few steps."""

    def __init__(self, job: PipelineJob, done: PipelineResult) -> None:
        self._every, self._folder, self._done = job.window_steps, job.record, done
        self._open: AbstractContextManager[Any] | None = None

    def before(self, step: int) -> None:
        if self._every and step % self._every == 0:
            from penstock.recording.recorder import record

            start = time.perf_counter()
            self.close()
            folder = f"{self._folder}/{len(self._done.windows):05}"
            self._open = record(folder)
            self._open.__enter__()
            self._done.windows.append(folder)
            self._done.window_s += time.perf_counter() - start

    def close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def trained(job: PipelineJob, is_ready: Callable[[], None] = lambda: None) -> PipelineResult:
    """All epochs of a job.  is_ready: called once everything but reading is done.

    Raises MissingDependency, OSError.
    """
    done = PipelineResult()
    compute = _MODELS[job.model](job)
    step_of = (
        _step_marks() if job.record or "penstock.recording.recorder" in sys.modules else nullcontext
    )
    epochs = _LOADERS[job.loader](job)
    windows = _Windows(job, done)
    first = next(epochs)  # the threads are there, nothing is read
    is_ready()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    clock = time.perf_counter
    begun = clock()
    step = 0
    for batches in _chained(first, epochs):
        epoch_begun = clock()
        windows.before(step)
        asked = clock()
        for moved, batch in batches:
            ready = clock()
            with step_of():
                compute(batch)
            done.samples += len(batch)
            done.read_bytes += moved
            done.waits_s.append(ready - asked)
            done.step_bytes.append(moved)
            done.compute_s += clock() - ready
            done.ends_s.append(time.time())
            step += 1
            windows.before(step)
            asked = clock()
        done.epochs_s.append(clock() - epoch_begun)
    windows.close()
    done.wall_s = clock() - begun
    done.wait_s = sum(done.waits_s)
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    done.cpu_s = sum(
        now.ru_utime + now.ru_stime - then.ru_utime - then.ru_stime
        for now, then in zip(after, usage, strict=True)
    )
    return done


def _chained(first: Batches, rest: Iterator[Batches]) -> Iterator[Batches]:
    yield first
    yield from rest


def _step_marks() -> Callable[[], AbstractContextManager[Any]]:
    from penstock.recording.recorder import step

    @contextmanager
    def marked() -> Iterator[None]:
        with step():
            yield

    return marked


def main() -> None:
    """Read a job from standard input, wait for a line, print the results, as JSON."""
    message = json.loads(sys.stdin.readline())
    job = PipelineJob(**message | {"files": tuple(message["files"])})

    def is_ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    try:
        answer = asdict(trained(job, is_ready))
    except (OSError, PenstockError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
