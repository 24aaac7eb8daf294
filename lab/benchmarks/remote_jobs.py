"""Jobs on an object server with a delay of 20 ms a request: what the report says of their waits.

    python lab/benchmarks/remote_jobs.py            # writes docs/experiments/remote-jobs.json
    python lab/benchmarks/remote_jobs.py NAME …     # jobs whose name has one of these words; prints

Each job times its own waits, and the server's delays in them are known.  The bar: the data wait's
part "network" is within 5 points of the wall time of what lies between delays and waits (the waits
hold the client's CPU time, too), and the endpoint is named; jobs that use the network for something
else show no waits on remote storage and no finding about it.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from bars import PENSTOCK, ROOT, machine
from remote_jobs_loops import BATCH, OBJECTS, OTHERS, STEPS, TRAININGS, key

from penstock_lab.objects import ObjectServer, certificate

LOOPS = Path(__file__).with_name("remote_jobs_loops.py")
RESULTS = ROOT / "docs" / "experiments" / "remote-jobs.json"
DELAY_S = 0.02
OBJECT_BYTES = 65536
POINTS = 0.05  # the bar
# Requests at once, by word of the name.
AT_ONCE = {"workers 2": 2, "2 threads": 2, "4 threads": 4, "event loop": 4, "pipe:curl": 4}
OF_REMOTE = {"N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8"}
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "NO_PROXY": "*",
}


def make(root: Path) -> None:
    """Objects, and tar files of four of them each, in the bucket `data`."""
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
    """One job, recorded."""
    out = folder / "".join(letter if letter.isalnum() else "-" for letter in name)
    with ObjectServer(root, DELAY_S, tls=tls if "TLS" in name else None) as server:
        address = server.url.replace("127.0.0.1", "localhost")
        command = [PENSTOCK, "run", "-q", "-o", out, sys.executable, LOOPS, name, address]
        done = subprocess.run(
            command, env=os.environ | SETTINGS, capture_output=True, text=True, check=False
        )
    if done.returncode:
        return {"job": name, "why": (done.stderr.strip().splitlines() or ["no word"])[-1][:300]}
    clocks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    report = json.loads(
        subprocess.run(
            [PENSTOCK, "report", out, "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    return judge(name, clocks, report, server, address.partition("//")[2])


def delays_s(name: str, computed_s: float) -> float:
    """Return the server's delays in the waits: of each batch, less what was fetched ahead."""
    at_once = next((n for word, n in AT_ONCE.items() if word in name), 1)
    of_batches_s = (STEPS - 1) * BATCH * DELAY_S / at_once
    is_ahead = "workers 2" in name or "prefetch" in name
    return max(0.0, of_batches_s - computed_s) if is_ahead else of_batches_s


def judge(
    name: str, clocks: list[dict[str, float]], report: dict[str, Any], server: Any, endpoint: str
) -> dict[str, Any]:
    parts = {part["key"]: part["s"] or 0.0 for part in report["wait"]}
    wall_s = next(row["number"]["value"] for row in report["stretches"] if row["key"] == "wall_s")
    network_s = sum(s for part, s in parts.items() if part.startswith("network"))
    waited_s, of_s = (sum(clock[key] for clock in clocks) for key in ("waited_s", "wall_s"))
    truth = waited_s / of_s
    injected = delays_s(name, of_s - waited_s) / of_s
    row: dict[str, Any] = {
        "job": name,
        "truth": truth,
        "injected": injected,
        "network": network_s / wall_s,
        "parts": {part: s / wall_s for part, s in parts.items() if s > 0.01 * wall_s},
        "headline": report["verdict"]["headline"],
        "sentence": report["verdict"]["sentence"],
        "findings": [finding["rule"] for finding in report["findings"]],
        "server": {"requests": server.counts.requests, "bytes": server.counts.bytes},
    }
    if name in TRAININGS:
        row["is_named"] = endpoint.partition(":")[2] in row["sentence"]
        is_near = injected - POINTS <= row["network"] <= truth + POINTS
        row["is_met"] = is_near and row["is_named"]
    else:
        is_remote = "remote storage" in row["headline"] + row["sentence"]
        row["is_met"] = not is_remote and not OF_REMOTE & set(row["findings"])
    return row


def main() -> None:
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
        RESULTS.write_text(json.dumps({"machine": machine(), "jobs": rows}, indent=1) + "\n")
    print(f"{sum(row.get('is_met', False) for row in rows)} of {len(rows)} met")


if __name__ == "__main__":
    main()
