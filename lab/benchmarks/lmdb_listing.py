"""The cost of listing the keys of an LMDB whose file is not in memory.  Needs py-lmdb alone.

    python lmdb_listing.py FOLDER [RECORDS]      makes FOLDER once; lists the keys cold, twice

Data set classes list the keys at their creation.  Keys lie in leaf pages; values above half a page
lie in overflow pages, and a listing has no reason to touch overflow pages.  The program counts the
touched data: page faults that waited for the disk, and bytes read from the disk.

To compare releases, run the program in two environments on one folder:

    python -m venv old && old/bin/pip install lmdb==1.8.1
    python -m venv new && new/bin/pip install lmdb
    for each in old new; do $each/bin/python lmdb_listing.py /a/real/disk/listing; done
"""

import json
import os
import resource
import sys
import time

import lmdb

RECORD_BYTES = 3073  # a picture of CIFAR-10: each in a separate overflow page
BATCH = 10_000


def main() -> None:
    folder = sys.argv[1]
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
    path = os.path.join(folder, "data.mdb")
    if not os.path.exists(path):
        make(folder, n)
    for readahead in (False, True):
        evict(path)
        print(json.dumps(listed(folder, readahead)), flush=True)


def make(folder: str, n: int) -> None:
    os.makedirs(folder)
    value = os.urandom(RECORD_BYTES)
    with lmdb.open(folder, map_size=2 * n * 4096 + (1 << 24), sync=False) as env:
        for start in range(0, n, BATCH):
            with env.begin(write=True) as txn:
                for number in range(start, min(n, start + BATCH)):
                    txn.put(b"%08d" % number, value, append=True)
        env.sync(True)


def evict(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def listed(folder: str, readahead: bool) -> dict[str, object]:
    before, read_before = resource.getrusage(resource.RUSAGE_SELF), read_bytes()
    start_s = time.perf_counter()
    with lmdb.open(folder, readonly=True, lock=False, readahead=readahead) as env:
        with env.begin() as txn:
            n = sum(1 for _ in txn.cursor().iternext(values=False))
        pages = {name: env.stat()[name] for name in ("branch_pages", "leaf_pages")}
    seconds = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "py-lmdb": lmdb.__version__,
        "liblmdb": ".".join(map(str, lmdb.version()[:3])),
        "readahead": readahead,
        "keys": n,
        **pages,
        "seconds": round(seconds, 3),
        "major_faults": after.ru_majflt - before.ru_majflt,
        "MB_read": round((read_bytes() - read_before) / 1e6, 1),
    }


def read_bytes() -> int:
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


if __name__ == "__main__":
    main()
