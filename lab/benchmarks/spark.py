"""How many events a second DuckDB and Spark answer a report for, from equal tables.

    python lab/benchmarks/spark.py [EVENTS] [ENGINE...]     e.g. 1e8 duckdb spark spark://node1:7077

The run is synthetic: EVENTS reads of 8,192 files by 64 threads in eight processes, steps and data
waits in a ninth.  The time is the time of measure() alone: without the start of Python and of
Spark.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import duckdb
import numpy as np

from penstock.explain.measures import measure
from penstock.explain.spark import open_on_spark
from penstock.log.layout import OPS
from penstock.runs.run import import_run, open_run

PART_EVENTS = 10_000_000
FILES = 8192
S = 10**9
HOUR = 3600 * S


def made(folder: Path, events: int) -> Path:
    """An imported run of so many events."""
    parts = max(1, -(-events // PART_EVENTS))
    each = events // parts
    shutil.rmtree(folder, ignore_errors=True)
    steps = 3600 * parts
    begun = np.arange(steps) * S
    nothing = np.zeros(steps, np.int64)
    columns = {
        "processes": {
            "process": np.arange(9),
            "pid": np.arange(9) + 100,
            "host": np.array(["node1"] * 9, object),
            "state": np.array(["exited"] * 9, object),
            "start_ns": np.zeros(9, np.int64),
            "end_ns": np.full(9, parts * HOUR),
        },
        "files": {
            "file": np.arange(FILES),
            "path": np.array([f"/data/{n % 64}/{n}" for n in range(FILES)], object),
            "kind": np.array(["regular"] * FILES, object),
            "size_bytes": np.full(FILES, 1 << 30),
        },
        "spans": {
            "process": np.zeros(2 * steps, np.int64),
            "thread": np.zeros(2 * steps, np.int64),
            "kind": np.array(["step"] * steps + ["span"] * steps, object),
            "name": np.array(["step"] * steps + ["data wait"] * steps, object),
            "index": np.concatenate([np.arange(steps), np.arange(steps)]),
            "a": np.concatenate([nothing, nothing + 1]),
            "b": np.concatenate([nothing, nothing]),
            "start_ns": np.concatenate([begun + S // 4, begun]),
            "duration_ns": np.concatenate([nothing + 3 * S // 4, nothing + S // 4]),
        },
    }
    import_run(folder, "lab/benchmarks/spark.py", 0, columns)
    read = next(op.number for op in OPS if op.name == "pread")
    tables = folder / "tables"
    with duckdb.connect() as engine:
        for part in range(parts):
            engine.execute(f"""
                COPY (
                    SELECT (1 + n % 8)::INTEGER AS process, (1 + n % 64)::INTEGER AS thread,
                        {read}::UTINYINT AS op_number, 0::SMALLINT AS errno,
                        (hash(n) % {FILES})::INTEGER AS file, NULL::INTEGER AS other_file,
                        {part * HOUR} + n * {HOUR // each} AS start_ns,
                        (20000 + hash(n) % 100000)::BIGINT AS duration_ns,
                        (hash(n + 1) % 262144 * 4096)::BIGINT AS offset_bytes,
                        65536::BIGINT AS asked_bytes, 65536::BIGINT AS moved_bytes,
                        NULL::BIGINT AS result,
                        ({part * 3600} + n * 3600 // {each})::INTEGER AS step
                    FROM range({each}) t(n)
                ) TO '{tables}/events/{part:05}.parquet'
                (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 5000)
            """)
    manifest = json.loads((tables / "manifest.json").read_text())
    manifest["parts"]["events"] = parts
    (tables / "manifest.json").write_text(json.dumps(manifest))
    return folder


def main() -> None:
    events = int(float(sys.argv[1])) if len(sys.argv) > 1 else PART_EVENTS
    engines = sys.argv[2:] or ["duckdb", "spark"]
    folder = made(Path("build/bench/spark"), events)
    with open_run(folder) as run:
        ((total,),) = run.sql("SELECT count(*) FROM events")
        for engine in engines:
            if engine == "duckdb":
                begun_s = time.monotonic()
                measure(run)
            else:
                with open_on_spark(run, engine) as there:
                    begun_s = time.monotonic()
                    measure(there)
            took_s = time.monotonic() - begun_s
            print(f"{engine}: {total:,} events in {took_s:.1f} s, {total / took_s / 1e6:.2f} M/s")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
