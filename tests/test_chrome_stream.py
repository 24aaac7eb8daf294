"""Traces of any size are read one event at a time, as json.loads reads them."""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ForeignError
from penstock.interop import chrome_stream
from penstock.interop.chrome_stream import Trace


def values(draws: random.Random, depth: int = 3) -> Any:
    kind = draws.randrange(8 if depth else 6)
    if kind < 6:
        texts = ["", "ä😀", '"\\', "a" * draws.randrange(30), "\ud800"]
        return [None, True, draws.randrange(-(10**20), 10**20), draws.random() * 1e-9,
                draws.choice(texts), -0.0][kind]  # fmt: skip
    n = draws.randrange(4)
    if kind == 6:
        return [values(draws, depth - 1) for _ in range(n)]
    return {f"k{i}": values(draws, depth - 1) for i in range(n)}


@pytest.mark.parametrize("piece", [1, 2, 7, 1 << 18])
def test_a_trace_is_read_as_json_reads_it(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chrome_stream, "_PIECE_BYTES", piece)
    path = tmp_path / "t.json"
    for seed in range(40):
        draws = random.Random(seed)
        document = {f"h{i}": values(draws) for i in range(draws.randrange(3))}
        document["traceEvents"] = [values(draws) for _ in range(draws.randrange(6))]
        document |= {f"z{i}": values(draws) for i in range(draws.randrange(3))}
        text = json.dumps(
            document, indent=draws.choice([None, 1]), ensure_ascii=draws.random() < 0.5
        )
        data = text.encode("utf-8", "backslashreplace" if "\ud800" in text else "strict")
        path.write_bytes(gzip.compress(data) if seed % 2 else data)
        trace = Trace(path)
        for _ in range(2):
            assert list(trace.events()) == json.loads(data)["traceEvents"]
        assert {**trace.head, "traceEvents": 0} == json.loads(data) | {"traceEvents": 0}
        assert trace.has_events


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"traceEvents": [', '{"traceEvents": [1', '{"traceEvents": [1,]}', "{1: 2}",
     '{"traceEvents": []} x', '{"traceEvents": [] "a":1}', '{"traceEvents": [],"traceEvents": []}',
     '{"a": 1 "b": 2}', '{"a": 12', '{"traceEvents": [{"a": "\\x"}]}'],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ForeignError, match=r"t\.json: "):
        list(Trace(tmp_path / "t.json").events())


def test_a_value_beyond_the_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    for text in (b'{"a":"' + b"x" * (12 << 20), b'{"traceEvents":[' + b"[" + b"{}," * (4 << 20)):
        path.write_bytes(gzip.compress(text, 1))
        with pytest.raises(ForeignError, match="more than 4,194,304 bytes"):
            list(Trace(path).events())


MANY = """
import gzip, json, resource, sys
from pathlib import Path
from penstock.interop import torch_profiler
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
profile = torch_profiler.read(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_profile_of_a_hundred_megabytes_takes_little_memory(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.5,
             "dur": 2, "args": {"External id": 5, "Record function id": 0, "Ev": 9}}  # fmt: skip
    lines = b",\n".join([json.dumps(event).encode()] * 10_000)
    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [\n')
        for _ in range(70):
            file.write(lines + b",\n")
        file.write(json.dumps(event).encode() + b'], "baseTimeNanoseconds": 7}')
    assert path.stat().st_size > 100_000_000
    done = subprocess.run(
        [sys.executable, "-c", MANY, path], capture_output=True, text=True, check=True, timeout=240
    )
    assert int(done.stdout) < 50_000  # kB; json.loads took 900,000
