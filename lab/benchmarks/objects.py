"""penstock.feed over S3 against five peers: records of 100 KB, shuffled, in shards and as objects.

    python lab/benchmarks/objects.py --peers PYTHON      # an environment with the peers installed

The server is penstock_lab.objects on loopback: so many ms a request, 200 MB/s in all.  Writes
docs/experiments/objects.json and objects.md.  Files are sparse, so the data set takes little disk.
"""

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from bars import ROOT, machine

from penstock_lab.objects import server_process

READERS = Path(__file__).with_name("objects_readers.py")
RECORD_BYTES, SHARD_RECORDS = 100_000, 640
RATE_MB = 200
DELAYS_MS = (20, 50)
LAYOUTS = {
    "shards": ("plain", "feed", "boto3", "s3torchconnector", "webdataset", "litdata", "mosaic"),
    "objects": ("plain", "feed", "boto3", "s3torchconnector"),
}
LIMIT_S = 100
OF_CEILING, ONCE = 0.9, 1.02  # the bars
SETTINGS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
VERSIONS = """
import importlib.metadata as m
for name in ("boto3", "s3torchconnector", "webdataset", "litdata", "mosaicml-streaming", "torch"):
    print(name, m.version(name))
"""

MAKE = """
import json, os, sys
import litdata
from streaming import MDSWriter
root, n, record_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def record(number):
    return number.to_bytes(8, "little") + b"PSTK" + bytes(record_bytes - 12)

if __name__ == "__main__":
    with MDSWriter(out=f"{root}/mds", columns={"bin": "bytes"}, size_limit=64 << 20) as out:
        for number in range(n):
            out.write({"bin": record(number)})
    litdata.optimize(record, list(range(n)), f"{root}/litdata", chunk_bytes="64MB", num_workers=1)
"""


def record(number: int) -> bytes:
    return number.to_bytes(8, "little") + b"PSTK" + bytes(RECORD_BYTES - 12)


def make(root: Path, n: int, peers: str) -> None:
    """The data set in each layout, below the bucket `data`."""
    data = root / "data"
    for layout in LAYOUTS:
        (data / layout).mkdir(parents=True)
    rows: list[str] = []
    for first in range(0, n, SHARD_RECORDS):
        name = f"train-{first // SHARD_RECORDS:03d}.tar"
        with tarfile.open(data / "shards" / name, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(first, min(n, first + SHARD_RECORDS)):
                about = tarfile.TarInfo(f"{number:06d}.bin")
                about.size = RECORD_BYTES
                rows.append(f"{name} {tar.offset + 512} {RECORD_BYTES}")
                tar.addfile(about, io.BytesIO(record(number)))
        dig(data / "shards" / name)
    (root / "shards.index").write_text("\n".join(rows))
    for number in range(n):
        (data / "objects" / f"{number:06d}.bin").write_bytes(record(number))
        dig(data / "objects" / f"{number:06d}.bin")
    rows = [f"{number:06d}.bin 0 {RECORD_BYTES}" for number in range(n)]
    (root / "objects.index").write_text("\n".join(rows))
    script = root / "make.py"
    script.write_text(MAKE)
    subprocess.run([peers, script, data, str(n), str(RECORD_BYTES)], check=True)
    for path in [*(data / "mds").iterdir(), *(data / "litdata").iterdir()]:
        dig(path)


def dig(path: Path) -> None:
    subprocess.run(["fallocate", "--dig-holes", path], check=True)


def counts(address: str, is_reset: bool = False) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/__count{'?reset' * is_reset}") as answer:
        counters: dict[str, Any] = json.load(answer)
        return counters


def run(root: Path, reader: str, layout: str, delay_ms: int, peers: str) -> dict[str, Any]:
    """Run a reader, once."""
    row: dict[str, Any] = {"reader": reader, "layout": layout, "delay_ms": delay_ms}
    python = sys.executable if reader in ("feed", "plain") else peers
    with (
        server_process(root, delay_ms, RATE_MB) as address,
        tempfile.TemporaryDirectory() as cache,
    ):
        env = os.environ | SETTINGS | {"AWS_ENDPOINT_URL": address, "XDG_CACHE_HOME": cache}
        command = [python, READERS, reader, layout, address, root / f"{layout}.index"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        try:
            answer, why = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # hanging workers hold the pipes of the process
            answer, why = "", f"not done in {LIMIT_S} s"
            process.wait()
        if answer:
            row |= json.loads(answer.splitlines()[-1])
            row["bps"] = row["bytes"] / row["seconds"]
        else:
            row["why"] = (why.strip().splitlines() or ["no word"])[-1][:200]
        row["server"] = counts(address)
    print(json.dumps({key: row[key] for key in row if key != "server"}), flush=True)
    return row


NODE = """
import sys
from penstock.feed import Feed
rank, world_size, epochs = map(int, sys.argv[1:])
feed = Feed("s3://data/shards/*.tar", 64, shuffle="global", seed=3, rank=rank % world_size,
            world_size=world_size)
n = sum(len(batch) for _ in range(epochs) for batch in feed)
print(n)
"""


def node(
    root: Path, delay_ms: int, world_size: int, epochs: int, has_cache: bool
) -> dict[str, Any]:
    """Return, for four processes of a node, the bytes from the server for each byte of the data
    set."""
    files = (root / "data" / "shards").iterdir()
    total = sum(path.stat().st_size for path in files)
    with (
        server_process(root, delay_ms, RATE_MB) as address,
        tempfile.TemporaryDirectory() as folder,
    ):
        env = os.environ | SETTINGS | {"AWS_ENDPOINT_URL": address, "XDG_CACHE_HOME": folder}
        if has_cache:
            env |= {"PENSTOCK_FEED_CACHE": f"{folder}/tier"}
        node_command = [sys.executable, "-c", NODE]
        subprocess.run(
            [*node_command, "0", "1", "0"], env=env, check=True
        )  # the index, for later use
        index_bytes = counts(address)["bytes"]
        processes = [
            subprocess.Popen(
                [*node_command, str(rank), str(world_size), str(epochs)],
                env=env,
                stdout=subprocess.PIPE,
            )
            for rank in range(4)
        ]
        given = [int(process.communicate()[0]) for process in processes]
        seen = counts(address)
    row = {
        "world_size": world_size,
        "epochs": epochs,
        "has_cache": has_cache,
        "records_given": sum(given),
        "of_index": index_bytes / total,
        "of_data_set": seen["bytes"] / total,
    }
    print(json.dumps(row), flush=True)
    return row


def nodes_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Four processes of one node",
        "",
        "| each reads | epochs | cache | bytes from the server / of the data set | for the index |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    for row in rows:
        what = "a quarter each" if row["world_size"] == 4 else "all of it each"
        cache = "on the node's disk" if row["has_cache"] else "none"
        lines.append(
            f"| {what} | {row['epochs']} | {cache} | {row['of_data_set']:.3f} "
            f"| {row['of_index']:.3f} |"
        )
    return lines


def readers_table(rows: list[dict[str, Any]], layout: str, delay_ms: int) -> list[str]:
    """Return the lines of one layout behind one delay; none, where no reader ran."""
    mine = [r for r in rows if (r["delay_ms"], r["layout"]) == (delay_ms, layout)]
    if not mine:
        return []
    what = "In 64 MB shards" if layout == "shards" else "As objects"
    lines = [
        f"## {what}, {delay_ms} ms a request",
        "",
        "| reader | MB/s | of the ceiling | CPU a record | peak memory | requests |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in LAYOUTS[layout]:
        ran = [r for r in mine if r["reader"] == name]
        good = [r for r in ran if "bps" in r]
        shown = "ceiling (requests alone)" if name == "plain" else name
        if not good:
            lines.append(f"| {shown} | failed: {ran[0]['why']} | | | | |")
            continue
        row, bps = good[len(good) // 2], _best_bps(mine, name)
        lines.append(
            f"| {shown} | {bps / 1e6:.0f} | {bps / _best_bps(mine, 'plain'):.2f} "
            f"| {row['cpu_s'] / row['records'] * 1e6:.0f} µs "
            f"| {row['peak_bytes'] / 1e6:.0f} MB | {row['server']['gets']:,} |"
        )
    return [*lines, ""]


def _best_bps(rows: list[dict[str, Any]], reader: str) -> float:
    return statistics.median(r["bps"] for r in rows if r["reader"] == reader and "bps" in r)


def page(results: dict[str, Any]) -> str:
    lines: list[str] = []
    for delay_ms in DELAYS_MS:
        for layout in LAYOUTS:
            lines += readers_table(results["rows"], layout, delay_ms)
    lines += nodes_table(results["nodes"])
    return "\n".join(
        [
            "# Feed: records from an object store, against five peers",
            "",
            "    python lab/benchmarks/objects.py --peers PYTHON",
            "",
            "Written by that command, from objects.json.",
            f"{results['n']:,} records of 100 KB are read once, shuffled, from a server on "
            f"loopback that takes 20 or 50 ms a request and gives {RATE_MB} MB/s in all. Each "
            "reader is a process of its own, for 15 s at the most; the clock starts when its data "
            "set is opened, so index and imports are not in the time. boto3 and the ceiling read "
            "by a list of places with 64 threads; DataLoaders have 4 workers, but for litdata, "
            "which did not come to an end with any.",
            "",
            "Not all shuffle alike: feed, boto3 and, of objects, s3torchconnector take any record "
            "from anywhere. webdataset and MosaicML Streaming mix what is near, litdata the "
            "records of a chunk, s3torchconnector gives shards as they are. MosaicML and litdata "
            "fetch whole chunks of their own formats and keep them on disk. CPU includes the "
            "imports.",
            "",
            f"{results.get('remark', '')}",
            "",
            f"{results['machine']} Compared with {results['versions']}.",
            "",
            *lines,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="a Python with the peers")
    parser.add_argument("--folder", type=Path, help="where the data set is made")
    parser.add_argument("--records", type=int, default=4800)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--delays", type=int, nargs="*", default=list(DELAYS_MS))
    parser.add_argument("--part", choices=["all", "readers", "nodes", "page"], default="all")
    asked = parser.parse_args()
    output = ROOT / "docs" / "experiments" / "objects.json"
    results: dict[str, Any] = {"n": asked.records, "rows": [], "nodes": []}
    if output.exists() and asked.part != "all":
        results = json.loads(output.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        root = asked.folder or Path(scratch)
        if asked.part != "page" and not (root / "data").exists():
            make(root, asked.records, asked.peers)
        if asked.part in ("all", "readers"):
            versions = subprocess.run(
                [asked.peers, "-c", VERSIONS], check=True, capture_output=True, text=True
            )
            results["versions"] = ", ".join(versions.stdout.splitlines())
            results["machine"] = machine()
            results["rows"] = [r for r in results["rows"] if r["delay_ms"] not in asked.delays]
            results["rows"] += [
                run(root, reader, layout, delay_ms, asked.peers)
                for delay_ms in asked.delays
                for _ in range(asked.rounds)
                for layout, readers in LAYOUTS.items()
                for reader in readers
            ]
        if asked.part in ("all", "nodes"):
            results["nodes"] = [
                node(root, 20, world_size, epochs, has_cache)
                for world_size, epochs, has_cache in ((4, 1, False), (4, 3, True), (1, 2, True))
            ]
    output.write_text(json.dumps(results, indent=1) + "\n")
    output.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
