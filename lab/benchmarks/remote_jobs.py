"""Jobs on an object server with a delay of 20 ms a request: the report against the server's log.

    python lab/benchmarks/remote_jobs.py            # writes docs/experiments/remote-jobs.md
    python lab/benchmarks/remote_jobs.py NAME …     # jobs with a word in the name; prints

The truth is the share of the training's time in which the loop waited for a batch and the server
had a request for an object of the batch, by the loop's and the server's clocks (equal clocks: both
are on this machine).  The bar: the report's part "network" of the data wait is within 5 points of
the truth, and the sentence names the endpoint.  Jobs that use the network for something else show
no waits on remote storage and no finding about remote storage.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from bars import PENSTOCK, ROOT, machine
from remote_jobs_loops import BATCH, OBJECTS, OTHERS, STEPS, TRAININGS, key

from penstock_lab.objects import ObjectServer, Served, certificate

LOOPS = Path(__file__).with_name("remote_jobs_loops.py")
PAGE = ROOT / "docs" / "experiments" / "remote-jobs.md"
DELAY_S = 0.02
OBJECT_BYTES = 65536
PRIORITY = 10
BEHIND = ["nice", "-n", str(PRIORITY)]  # before the jobs' commands
MOST_S = 60  # of a job
POINTS = 0.05  # the bar
NUMBERED = re.compile(r"/(objects|shards)/(\d+)")
OF_REMOTE = {"N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8"}
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "NO_PROXY": "*",
}


def make(root: Path) -> None:
    """Make objects, and tar files of four objects each, in the bucket `data`."""
    (root / "data" / "objects").mkdir(parents=True)
    (root / "data" / "shards").mkdir()
    for number in range(OBJECTS):
        (root / "data" / key(number)).write_bytes(bytes(OBJECT_BYTES))
    for shard in range(STEPS):
        with tarfile.open(root / "data" / "shards" / f"{shard:03d}.tar", "w") as tar:
            for number in range(BATCH):
                about = tarfile.TarInfo(f"{shard * BATCH + number:06d}.bin")
                about.size = OBJECT_BYTES
                tar.addfile(about, BytesIO(bytes(OBJECT_BYTES)))


def run(name: str, root: Path, folder: Path, tls: Any) -> dict[str, Any]:
    """Record a job."""
    out = folder / "".join(letter if letter.isalnum() else "-" for letter in name)
    with ObjectServer(root, DELAY_S, tls=tls if "TLS" in name else None, keep=True) as server:
        address = server.url.replace("127.0.0.1", "localhost")
        command = [*BEHIND, PENSTOCK, "run", "-q", "-o", out, sys.executable, LOOPS, name, address]
        try:
            done = subprocess.run(
                command, env=os.environ | SETTINGS, capture_output=True, text=True, timeout=MOST_S
            )
        except subprocess.TimeoutExpired:
            return {"job": name, "why": f"no end within {MOST_S} s", "is_met": False}
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
        return {"job": name, "why": error, "is_met": False}
    clocks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    report = json.loads(
        subprocess.run(
            [PENSTOCK, "report", out, "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    return judge(name, clocks, report, server, address.partition("//")[2])


def batch_of(path: str, shards_ahead: int) -> int:
    """Return the number of the batch of a request; -1: none."""
    match = NUMBERED.search(path)
    if not match:
        return -1
    return int(match[2]) // BATCH if match[1] == "objects" else int(match[2]) - shards_ahead


def in_network_s(
    waits: list[tuple[float, float]], served: list[Served], shards_ahead: int
) -> float:
    """Return the waits' time in which the server had a request of the awaited batch.

    served: in the order of the begin.  shards_ahead: how many shards ahead of its batch a shard is
    read.
    """
    total_s = 0.0
    for number, (asked_s, got_s) in enumerate(waits, 1):
        covered_s = asked_s
        for row in (row for row in served if batch_of(row.path, shards_ahead) == number):
            begun_s, ended_s = max(covered_s, row.begun_s), min(got_s, row.ended_s)
            if ended_s > begun_s:
                total_s += ended_s - begun_s
                covered_s = ended_s
    return total_s


def judge(
    name: str,
    clocks: list[dict[str, Any]],
    report: dict[str, Any],
    server: ObjectServer,
    endpoint: str,
) -> dict[str, Any]:
    parts = {part["key"]: part["s"] or 0.0 for part in report["wait"]}
    wall_s = next(row["number"]["value"] for row in report["stretches"] if row["key"] == "wall_s")
    network_s = sum(s for part, s in parts.items() if part.startswith("network"))
    loop_s = sum(clock["wall_s"] for clock in clocks)
    waits = [tuple(wait) for clock in clocks for wait in clock["waits"]]
    served = sorted(server.served, key=lambda row: row.begun_s)
    sentence = report["verdict"]["sentence"]
    row: dict[str, Any] = {
        "job": name,
        "wait": sum(got - asked for asked, got in waits) / loop_s,
        "truth": 0.0,
        "told": network_s / wall_s,
        "parts": {part: s / wall_s for part, s in parts.items() if s > 0.01 * wall_s},
        "headline": report["verdict"]["headline"],
        "sentence": sentence,
        "findings": [finding["rule"] for finding in report["findings"]],
        "requests": len(served),
        "is_named": endpoint.partition(":")[2] in sentence,
    }
    if name in TRAININGS:
        # webdataset yields the last record of a shard after the first record of the next shard.
        shards_ahead = 1 if name.startswith("webdataset") else 0
        row["truth"] = in_network_s(waits, served, shards_ahead) / loop_s
        row["is_met"] = abs(row["told"] - row["truth"]) <= POINTS and row["is_named"]
    else:
        is_remote = "remote storage" in row["headline"] + sentence
        row["is_met"] = not is_remote and not OF_REMOTE & set(row["findings"])
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """Return the text of docs/experiments/remote-jobs.md."""
    trainings = [row for row in rows if row["job"] in TRAININGS]
    others = [row for row in rows if row["job"] in OTHERS]
    met = sum(row["is_met"] for row in trainings)
    lines = [
        "# Jobs on an object server: the report against the server's log",
        "",
        "    python lab/benchmarks/remote_jobs.py",
        "",
        "Written by that command.",
        "Each job trains 40 steps of 10 ms on batches of four objects of 64 KB, from a server on",
        "loopback with a delay of 20 ms a request. *Truth* is the share of the training's time in",
        "which the loop waited for a batch and the server had a request for an object of that",
        "batch, by the clocks of loop and server. *Report* is the share of the report's part",
        "`network` of the data wait. The bar: the two are within 5 points, and the verdict names",
        "the endpoint.",
        "",
        machine(),
        "",
        f"## Trainings: {met} of {len(trainings)} meet the bar",
        "",
        "| job | data wait | truth | report | off, points | endpoint | requests | bar |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    for row in trainings:
        if "why" in row:
            lines.append(f"| {row['job']} | – | – | – | – | – | – | not run: {row['why']} |")
            continue
        off = 100 * (row["told"] - row["truth"])
        lines.append(
            f"| {row['job']} | {row['wait']:.0%} | {row['truth']:.1%} | {row['told']:.1%} "
            f"| {off:+.1f} | {'named' if row['is_named'] else 'missing'} "
            f"| {row['requests']} | {'met' if row['is_met'] else '**missed**'} |"
        )
    met = sum(row["is_met"] for row in others)
    lines += [
        "",
        f"## Jobs that use the network for something else: {met} of {len(others)} meet the bar",
        "",
        "The bar: no wait on remote storage, and no finding N1 to N8.",
        "",
        "| job | report's part `network` | findings | bar |",
        "| --- | ---: | --- | --- |",
    ]
    lines += [
        f"| {row['job']} | {row['told']:.1%} | {', '.join(row['findings']) or 'none'} "
        f"| {'met' if row['is_met'] else '**missed**'} |"
        for row in others
    ]
    return "\n".join(lines) + "\n"


def go_first() -> None:
    """Let the server answer before the jobs run, where permitted: else a job's wait for a busy
    server is not in the server's log."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -PRIORITY)
    except PermissionError:
        BEHIND.clear()


def main() -> None:
    go_first()
    words = sys.argv[1:]
    names = [
        name for name in (*TRAININGS, *OTHERS) if not words or any(word in name for word in words)
    ]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(os.environ.get("BENCH_FOLDER", scratch))
        make(Path(scratch) / "root")
        tls = certificate(Path(scratch))[0]
        for name in names:
            rows.append(run(name, Path(scratch) / "root", folder, tls))
            print(json.dumps(rows[-1]), flush=True)
    if not words:
        PAGE.write_text(page(rows))
    print(f"{sum(row['is_met'] for row in rows)} of {len(rows)} met")


if __name__ == "__main__":
    main()
