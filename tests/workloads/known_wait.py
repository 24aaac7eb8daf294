"""A training whose waits are known: it looks at its own clock around everything it does.

usage: known_wait.py JOB TRUTH.json, in a folder with files slow/0 ... slow/799 and the same in
fast/, as many as the longest job reads: none is read twice.

Each item hands over when it read and when it decoded; the loop notes its waits, steps and saves.
From these the truth is made at the end, in a way that shares nothing with Penstock: intervals,
intersected.  Time inside a call in which the thread was ready and had no CPU is no wait for
storage.
"""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

JOBS = {
    # name: workers, items a batch, reads an item, decoding and computing in ms, batches, saves
    "storage": (2, 4, 1, 0.5, 12, 50, 0),
    "metadata": (2, 4, 1, 0.5, 6, 50, 0),
    "decode": (1, 4, 1, 10.0, 15, 50, 0),
    "checkpoint": (1, 4, 1, 0.2, 30, 50, 5),
    "mixed": (1, 4, 1, 2.0, 20, 50, 5),
    "warm": (1, 4, 1, 0.5, 12, 80, 0),
    "straggler": (2, 4, 1, 0.5, 20, 50, 0),
    "control": (1, 4, 0, 0.2, 30, 60, 0),
}
job = sys.argv[1]
WORKERS, ITEMS, READS, DECODE_MS, COMPUTE_MS, BATCHES, SAVES = JOBS[job]
now = time.perf_counter


def spin(ms):
    """Computes for so long: on the processor, whatever else runs there."""
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        pass


def delayed_s():
    """How long this thread has been ready without a CPU, as the kernel counts it."""
    if delayed_s.pid != os.getpid():
        delayed_s.pid, delayed_s.fd = (
            os.getpid(),
            os.open("/proc/thread-self/schedstat", os.O_RDONLY),
        )
    return int(os.pread(delayed_s.fd, 96, 0).split()[1]) / 1e9


delayed_s.pid = 0


def split(kind, start, end, delay_s):
    """A call's two marks: what it waited, and how long it had no CPU."""
    middle = max(start, end - delay_s)
    return [(kind, start, middle), ("delay", middle, end)]


class Files(Dataset):
    def __len__(self):
        return BATCHES * ITEMS

    def __getitem__(self, index):
        marks = []
        info = get_worker_info()
        reads = READS * (4 if job == "straggler" and info and info.id == 1 else 1)
        for number in range(index, reads * len(self), len(self)):
            is_warm = job == "warm" and index >= len(self) // 2
            name = f"{'fast' if is_warm else 'slow'}/{number}"
            before_s, start = delayed_s(), now()
            fd = os.open(name, os.O_RDONLY)
            opened, between_s = now(), delayed_s()
            begun = now()
            os.read(fd, 1 << 20)
            done = now()
            marks += split("metadata", start, opened, between_s - before_s)
            marks += split("read", begun, done, delayed_s() - between_s)
            os.close(fd)
        start = now()
        spin(DECODE_MS)
        marks.append(("cpu", start, now()))
        return marks


def collate(items):
    """No tensor: handing one over takes a socket and a file, milliseconds on a busy machine."""
    return [mark for marks in items for mark in marks]


class Timed:
    """A file that knows how long its writes took."""

    written_s = 0.0

    def __init__(self, file):
        self.file = file

    def write(self, data):
        start = now()
        self.file.write(data)
        Timed.written_s += now() - start
        return len(data)

    def flush(self):
        pass


def overlap(spans, marks):
    """Seconds of marks inside spans; each kind for itself."""
    sums = {}
    for kind, start, end in marks:
        inside = sum(max(0.0, min(end, to) - max(start, at)) for at, to in spans)
        sums[kind] = sums.get(kind, 0.0) + inside
    return sums


def main():
    torch.set_num_threads(1)
    net = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    loader = DataLoader(
        Files(), batch_size=ITEMS, num_workers=WORKERS, collate_fn=collate, prefetch_factor=2
    )
    waits, marks, saves, first, last = [], [], [], None, None
    iterator = iter(loader)
    for step in range(BATCHES):
        start = now()
        done = next(iterator)
        end = now()
        if first is None:
            first = end
        else:
            waits.append((start, end))
            marks.append(done)
        optimizer.zero_grad()
        net(torch.zeros(ITEMS, 16)).sum().backward()
        spin(COMPUTE_MS)
        optimizer.step()
        last = now()
        if SAVES and step % (BATCHES // SAVES) == BATCHES // SAVES - 1:
            start = now()
            with open(f"slow/{step}.pt", "wb", buffering=0) as file:
                torch.save({"net": net.state_dict(), "pad": torch.zeros(50_000)}, Timed(file))
            last = now()
            saves.append((start, last))
    parts = {"read": 0.0, "metadata": 0.0, "cpu": 0.0, "delay": 0.0}
    for wait, done in zip(waits, marks, strict=True):
        for kind, s in overlap([wait], done).items():
            parts[kind] += s
    parts["write"] = Timed.written_s
    truth = {
        "wall_s": last - first,
        "data_wait_s": sum(end - start for start, end in waits),
        "checkpoint_s": sum(end - start for start, end in saves),
        "parts": parts,
    }
    with open(sys.argv[2], "w") as file:
        json.dump(truth, file)


if __name__ == "__main__":
    main()
