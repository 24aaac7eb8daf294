"""Makes the golden log of the newest version: PYTHONPATH=src:tests python tests/logs/make.py

Only until that version is released: from then on the log and its JSON stay as they are, and hold
what was read on that day.
"""

import gzip
import json
import struct
from pathlib import Path

from logwriter import Process, event, events_unit
from penstock.log import VERSION, read_log
from test_log import golden

HERE = Path(__file__).parent


def process() -> Process:
    """A little of everything that version 1 can say."""
    made = Process(pid=4711, ppid=4700, ticks_per_ns=2.5, start_ticks=10**12)
    made.header = {
        "rank": 1,
        "local_rank": 1,
        "world_size": 2,
        "folded": 5,
        "lost": 1,
        "slots": 900,
        "opens": [0, 1, 2, *[0] * 13],
    }
    folder = made.file("/data", mode=0o040755, device=2049, inode=2)
    for i in range(40):
        image = made.file(f"train/{i:05}.jpg", f"/mnt/data/train/{i:05}.jpg", base=folder)
        start = 1_000_000 * i
        made.call("open", start, 9_000, file=image)
        made.call("fstat", start + 10_000, 800, file=image)
        made.call("read", start + 12_000, 150_000, file=image, offset=0, asked=9001, moved=9000)
        made.call("read", start + 170_000, 700, file=image, offset=9000, asked=9001)
        made.call("close", start + 180_000, 900, file=image)
    copy = made.file("/data/a", "/fast/staged/data/a", mode=0o100644, inode=3, tier=1)
    made.call("open", 45_000_000, 9_000, file=copy)
    made.note("tier", "fast")
    missing = made.file(b"caf\xe9/\xff.txt", base=folder)
    made.call("stat", 50_000_000, 3_000, file=missing, errno=2)
    draft, final = made.file("/out/model.tmp"), made.file("/out/model.pt")
    made.call("write", 60_000_000, 400_000, file=draft, offset=0, asked=1 << 20, moved=1 << 20)
    made.call("rename", 60_500_000, 20_000, file=draft, offset=final)
    made.call("spawn", 61_000_000, 900_000, "/bin/true", moved=4800)
    made.call(
        "mmap", 62_000_000, 5_000, "/data/a.mdb", offset=0, asked=1 << 30, moved=0x7F0000000000
    )
    made.call(
        "fread", 63_000_000, 2_000, "/data/list.txt", offset=0, asked=4096, moved=100, thread=2
    )
    made.call("read", 64_000_000, 0, "/data/list.txt", offset=100, asked=4096, thread=2)
    for step in range(3):
        made.step(step, 20_000_000 * step, 19_000_000, b=1)
        made.span("data wait", 20_000_000 * step, 5_000_000, step, a=1, b=40_000)
    made.span("loader", 1_000, 0, 1, a=2, b=32)
    made.note("unseen", "io_uring")
    made.fold(
        {"file": 3, "op": "read", "calls": 5, "asked": 500, "moved": 450, "ticks": 12_500}
        | {"first": made.ticks(70_000_000), "last": made.ticks(71_000_000), "max_end": 450}
        | {"sequential": 4, "consecutive": 4, "empty": 1, "buckets": [4] + [0] * 9}
        | {"sizes": [(112, 4), (0, 0), (0, 0), (0, 0)]}
    )
    made.fold({"file": 3, "op": "open", "calls": 1, "ticks": 900}, is_access=False)
    return made


def main() -> None:
    data = process().bytes()
    carried = [event("span", 10**12 + 2500, 7_000_000, file=9, offset=1, asked=2, moved=32)]
    late = events_unit(
        carried,
        round=99,
        thread=1,
        tid=4711,
        first=10**12 + 170_000_000,
        n_carried=1,
        name=b"python",
    )
    # A live block after the last full one; the file ends inside a unit that was reserved and lost.
    data = data + late + b"\0" * 1000
    units = (len(data) - 65536) // 65536 + 1
    at = 48  # of `units` in the header
    data = data[:at] + struct.pack("<Q", units) + data[at + 8 :]
    path = HERE / f"v{VERSION}.log"
    path.write_bytes(data)
    path.with_suffix(".json").write_text(json.dumps(golden(read_log(path)), indent=1) + "\n")
    (HERE / f"v{VERSION}.log.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    path.unlink()


if __name__ == "__main__":
    main()
