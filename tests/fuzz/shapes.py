"""Hostile shapes of files below 1 MB, built for each reader: depth, counts, names, packed content,
 overlaps, records of one byte, giant numbers, long lines, many columns.

python -m fuzz.shapes TARGET ...: each shape in a process of its own; prints CPU time and memory."""

import gzip
import io
import json
import os
import resource
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import logwriter
import penstock.explain.measures
import penstock.explain.report
import penstock.runs.run  # noqa: F401 - with what they import, once and not in each process of its own
from fuzz.__main__ import seeds_of, tried_once
from fuzz.mutation import _streams
from fuzz.targets import TARGETS, Target, _reseal_mark, _tf_index
from penstock.safe import checksums

MOST_BYTES = (1 << 20) - 1
MOST_CHILD_BYTES = 400_000_000  # a process of its own: an interpreter and the engine take 100 MB
ADDRESS_BYTES = 12 << 30  # a reader beyond the limits must not take the machine with it
MS = 1_000_000

Shape = tuple[str, bytes]
Shapes = Callable[[], Iterator[Shape]]


def shapes_of(name: str) -> Iterator[Shape]:
    """Yield all shapes of a target: those of any format, then its own."""
    target = TARGETS[name]
    yield from _of_any_format(target)
    for own in _OWN.get(name, ()):
        for title, data in own():
            assert len(data) <= MOST_BYTES, (name, title, len(data))
            yield title, data


def _of_any_format(target: Target) -> Iterator[Shape]:
    yield "empty", b""
    yield "zeros", bytes(MOST_BYTES)
    yield "ones", b"\xff" * MOST_BYTES
    yield "line feeds", b"\n" * MOST_BYTES
    sound = seeds_of(target)[0]
    yield "sound, then zeros", sound + bytes(max(0, MOST_BYTES - len(sound)))
    yield "sound, many times", (sound * (1 + MOST_BYTES // max(1, len(sound))))[:MOST_BYTES]
    yield "sound, cut", sound[: len(sound) // 2]


def _texts() -> Iterator[Shape]:
    """Of JSON and TOML."""
    half = MOST_BYTES // 2
    yield "lists in lists", b"[" * MOST_BYTES
    yield "lists in lists, closed", b"[" * half + b"]" * half
    yield "objects in objects", b'{"a":' * (MOST_BYTES // 5)
    yield "one long text", b'"' + b"a" * (MOST_BYTES - 2) + b'"'
    yield "a text of escapes", b'"' + b"\\u0000" * (MOST_BYTES // 6 - 1) + b'"'
    yield "many numbers", b"[" + b"0," * (half - 1) + b"0]"
    yield "many objects", b"[" + b"{}," * (MOST_BYTES // 3 - 1) + b"0]"
    yield "many keys", json.dumps({str(n): 0 for n in range(80_000)}).encode()[:MOST_BYTES]
    yield "a giant number", b'{"version":' + b"9" * (MOST_BYTES - 20) + b"}"
    yield "a giant exponent", b'{"version":1e' + b"9" * 400_000 + b"}"


def _values(*keys: str, around: Callable[[Any], Any] = lambda value: value) -> Shapes:
    """Sound JSON with hostile values at a key."""

    def shapes() -> Iterator[Shape]:
        for key in keys:
            for title, value in (
                ("many", [[0, 1, 2, True]] * 60_000),
                ("long", "a" * 900_000),
                ("names", {f"{n:x}": None for n in range(50_000)}),
                ("giant", 10**4000),
                ("float", 1e308),
            ):
                text = json.dumps(around({key: value})).encode()
                yield f"{key}: {title}", text[:MOST_BYTES]

    return shapes


# --- recordings ----------------------------------------------------------------------------------


def _log_of(process: logwriter.Process) -> bytes:
    data = process.bytes()
    end = logwriter.HEADER_BYTES + (MOST_BYTES - logwriter.HEADER_BYTES) // 65536 * 65536
    return data[:end]


def _logs() -> Iterator[Shape]:
    n = 14_000
    process = logwriter.training(100, steps=2)
    for i in range(2 * n):
        process.call("read", i * 100, 10**9, "/data/a", moved=1)
    yield "calls that overlap", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(n // 2):
        process.span("x", i * 100, 10**9 - i * 200, i)
    yield "spans in spans", _log_of(process)
    for title, op in (("steps", "step"), ("spans", "span")):
        process = logwriter.Process()
        for i in range(n // 2):
            process.span("step" if op == "step" else "data wait", i, 10**9, i, op=op)
        yield f"{title} at one time", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(n // 2):
        process.span("fetch", i * 10, 10**9, i, thread=1 + i % 12)
        process.call("read", i * 10, 10**9, "/data/a", thread=1 + i % 12, moved=1)
    yield "fetches at one time", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(5000):
        process.call("open", i * 100, 10, f"/data/{i:0100}")
    yield "many files", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(200):
        process.call("open", i * 100, 10, b"/\xff\x1b" + b"a" * 4000 + b"%d" % i)
    yield "long names", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(5000):
        process.name(f"name {i}")
        process.note(f"key {i}", "a\tb\tc")
    yield "many names and notes", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(14 * 900 // 10):
        file = process.file(f"/{i}")
        if not i % 100:
            process.fold(*({"file": file, "op": op, "calls": 1 << 40, "errors": 0, "ticks": 1 << 50}
                           for op in ("read", "write") for _ in range(90)))  # fmt: skip
    yield "many counters", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(14):
        process.call("read", i, 10**9, "/data/a", thread=1 + i, moved=1 << 40)
    yield "many threads", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(n // 2):
        for op in ("fork", "sem_wait", "futex"):
            process.call(op, i * 10, 0 if i % 2 else 10**9, moved=i % 99, thread=1 + i % 8)
    yield "waits at one time", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(n):
        process.call("rename", i, 5, f"/{i % 3000}", offset=1 + (i + 1) % 3000)
    yield "renames in a ring", _log_of(process)
    process = logwriter.training(100, steps=2)
    process.header = {"units": (1 << 64) - 1, "last_ns": 1 << 62, "last_ticks": 1 << 62}
    for i in range(n):
        process.call("read", i * (1 << 40), 1 << 38, "/data/a", moved=(1 << 31) - 1)
    yield "years", _log_of(process)
    process = logwriter.training(100, steps=2)
    for i in range(n):
        process.call("write", i * 10, 9, f"/ck/model-{i % 900}.pt", offset=0, moved=1)
    yield "many checkpoints", _log_of(process)


def _sampled() -> Iterator[Shape]:
    def line(values: dict[str, Any]) -> bytes:
        return checksums.line(json.dumps(values, separators=(",", ":")).encode()) + b"\n"

    head = line({"format": 2, "boot_id": "a", "host": "b"})
    disks = {f"d{n}": [1, 2, 3, 4, 5] for n in range(40_000)}
    yield "many disks", head + line({"ns": 1, "disk": disks})
    yield "many lines", head + line({"ns": 5}) * ((MOST_BYTES - len(head)) // len(line({"ns": 5})))
    tiny = line({"ns": 1, "disk": {"a": [1, 2, 3, 4, 5]}})
    yield "many samples", head + tiny * ((MOST_BYTES - len(head)) // len(tiny))
    yield (
        "ended",
        head + line({"ns": 1, "process": {str(n): [9, 1, 2, 3, 4] for n in range(50_000)}}),
    )


# --- tables --------------------------------------------------------------------------------------


def _parquet(select: str, like: bytes) -> bytes:
    """A table of the columns of another one, whose rows come from a SELECT of some of them."""
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        seed, made = f"{folder}/seed.parquet", f"{folder}/made"
        Path(seed).write_bytes(like)
        with duckdb.connect(":memory:") as engine:
            engine.execute(
                f"COPY (FROM (SELECT * FROM '{seed}' LIMIT 0) UNION ALL BY NAME {select})"
                f" TO '{made}'"
                " (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 10000000,"
                f" KV_METADATA {{penstock: '{checksums.MARK}'}})"
            )
        return _reseal_mark(Path(made).read_bytes())


def _tables() -> Iterator[Shape]:
    like = seeds_of(TARGETS["imported-table"])[0]
    yield "many equal rows", _parquet("SELECT 1 AS file FROM range(60_000_000)", like)
    yield (
        "one long text, many times",
        _parquet(
            "SELECT r::INTEGER AS file, repeat('a', 500_000) AS path FROM range(20_000) t(r)", like
        ),
    )


def _reduced_files() -> Iterator[Shape]:
    like = seeds_of(TARGETS["reduced"])[0]
    for kind in ("file", "heat", "rank", "op"):
        yield (
            f"many equal rows: {kind}",
            _parquet(f"SELECT '{kind}' AS kind, 1 AS rank FROM range(40_000_000)", like),
        )
    yield "many ranks", _parquet("SELECT 'rank' AS kind, r AS rank FROM range(150_000) t(r)", like)
    yield (
        "one long text, many times",
        _parquet(
            "SELECT 'file' AS kind, r AS rank, repeat('a', 500_000) AS name FROM range(9_000) t(r)",
            like,
        ),
    )


# --- packed --------------------------------------------------------------------------------------


def _packed(prefix: bytes, piece: bytes, n: int) -> bytes:
    out = zlib.compressobj(9, wbits=31)
    parts = [out.compress(prefix)]
    parts += [out.compress(piece) for _ in range(n)]
    return b"".join([*parts, out.flush()])[:MOST_BYTES]


def _gzips() -> Iterator[Shape]:
    event = b'{"name":"read","cat":"POSIX","pid":1,"tid":1,"ts":1,"dur":5,"ph":"X","args":{}}\n'
    yield "zeros", _packed(b"", bytes(1 << 20), 900)
    yield "spaces", _packed(b"[\n", b" " * (1 << 20), 900)
    yield "events", _packed(b"[\n", event * 10_000, 150)
    yield "objects", _packed(b'{"traceEvents":[', b"{}," * 300_000, 300)
    yield "depth", _packed(b'{"traceEvents":', b"[" * (1 << 20), 100)
    yield "many members", gzip.compress(b"a") * (MOST_BYTES // 21)
    inner = _packed(b"", bytes(1 << 20), 300)
    yield "packed twice", gzip.compress(inner * 5)


def _darshans() -> Iterator[Shape]:
    for number, data in enumerate(seeds_of(TARGETS["darshan"])[:2]):
        for at, (offset, size, _) in enumerate(_streams(data)[:6]):
            bomb = zlib.compress(bytes(800 << 20), 9)[: MOST_BYTES - len(data)]
            yield f"log {number}, region {at} grows", data[:offset] + bomb + data[offset + size :]


def _zips(name: str) -> Shapes:
    def shapes() -> Iterator[Shape]:
        for title, data, packing in (
            ("one entry grows", bytes(900 << 20), zipfile.ZIP_DEFLATED),
            ("one entry", bytes(100), zipfile.ZIP_STORED),
        ):
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w", packing) as file:
                file.writestr(name, data)
            yield title, out.getvalue()
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as file:
            for n in range(9000):
                file.writestr(f"{n}", b"")
        yield "many entries", out.getvalue()
        yield "overlapping entries", _overlapping(name)

    return shapes


def _overlapping(name: str) -> bytes:
    """One packed kernel of 90 MB, named by thousands of entries of the directory."""
    packer = zlib.compressobj(9, wbits=-15)
    kernel = packer.compress(bytes(90 << 20)) + packer.flush()
    crc = zlib.crc32(bytes(90 << 20))
    local = struct.pack(
        "<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 0, crc, len(kernel), 90 << 20, 1, 0
    )
    body = local + b"a" + kernel
    entries = []
    while len(body) + sum(map(len, entries[:1])) * (len(entries) + 2) < MOST_BYTES - 1000:
        title = f"{len(entries):06}/{name}"[:40].encode()
        entries.append(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 0, crc,
                                   len(kernel), 90 << 20, len(title), 0, 0, 0, 0, 0, 0)
                       + title)  # fmt: skip
    directory = b"".join(entries)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(entries), len(entries), len(directory),
                      len(body), 0)  # fmt: skip
    return body + directory + end


# --- checkpoints and data sets -------------------------------------------------------------------


def _pickles() -> Iterator[Shape]:
    yield "lists in lists", b"\x80\x02" + b"]" * 400_000 + b"a" * 399_999 + b"."
    yield "tuples in tuples", b"\x80\x02)" + b"\x85" * 900_000 + b"."
    yield "doubling", b"\x80\x02]" + b"q\x00" + b"(h\x00h\x00l0" * 100_000 + b"."
    laughs = b"\x80\x02(l" + b"".join(b"q%c(h%ch%ct" % (n, n, n) for n in range(200)) + b"."
    yield "each twice the one before", laughs
    yield "a giant number", b"\x80\x02\x8b" + struct.pack("<i", 900_000) + b"\x7f" * 900_000 + b"."
    yield "a decimal number", b"I" + b"9" * 900_000 + b"\n."
    yield "many marks", b"\x80\x02" + b"(" * 900_000 + b"."
    yield "a frame beyond the end", b"\x80\x04\x95" + b"\xff" * 8 + b"N."
    yield "a text beyond the end", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"a."
    yield "memo far away", b"\x80\x02Nr\xff\xff\xff\x7f."
    yield "many memos", b"\x80\x04N" + b"\x94" * 900_000 + b"."
    yield "many dicts", b"\x80\x02(" + b"}" * 900_000 + b"t."
    yield "long_binput", b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", n << 8)
                                                 for n in range(180_000)) + b"."  # fmt: skip


def _npys() -> Iterator[Shape]:
    for shape in ("(9999999999999999999,)", "(1,)*3", f"({'1,' * 100_000})", f"({'9' * 900},)"):
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        yield f"shape {shape:.30}", b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text
    fields = ", ".join(f"('f{n}', '<f4')" for n in range(30_000))
    text = f"{{'descr': [{fields}], 'fortran_order': False, 'shape': (1,)}}\n".encode()
    yield "many columns", b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text
    deep = "(" * 9000 + ")" * 9000
    yield "depth", b"\x93NUMPY\2\0" + struct.pack("<I", len(deep)) + deep.encode()


def _safetensors() -> Iterator[Shape]:
    def packed(head: Any) -> bytes:
        text = head if isinstance(head, bytes) else json.dumps(head, separators=(",", ":")).encode()
        return (struct.pack("<Q", len(text)) + text)[:MOST_BYTES]

    def tensor(shape: list[int], end: int = 4) -> dict[str, Any]:
        return {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}

    yield "many dimensions", packed({"w": tensor([9999999999999999999] * 40_000)})
    yield "dimensions of 1", packed({"w": tensor([1] * 400_000)})
    yield "many tensors", packed({f"{n}": tensor([1]) for n in range(15_000)})
    yield "giant numbers", packed({"w": tensor([10**4000] * 200)})
    yield "depth", packed(b'{"w":' + b"[" * 900_000)
    yield "metadata", packed({"__metadata__": {f"{n}": "a" for n in range(60_000)}})


def _ggufs() -> Iterator[Shape]:
    yield "counts", b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62) + bytes(1000)
    deep = struct.pack("<IQ", 9, 1) * 70_000
    key = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    yield "arrays in arrays", (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + deep)[:MOST_BYTES]
    wide = key + struct.pack("<IQ", 0, 1 << 60) + bytes(900_000)
    yield "an array of bytes", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + wide
    many = (struct.pack("<Q", 1) + b"a" + struct.pack("<IB", 0, 1)) * 70_000
    yield "many keys", b"GGUF" + struct.pack("<IQQ", 3, 0, 70_000) + many
    tensors = (
        struct.pack("<Q", 1) + b"w" + struct.pack("<I4QIQ", 4, *[1 << 60] * 4, 0, 0)
    ) * 15_000
    yield "many tensors", (b"GGUF" + struct.pack("<IQQ", 3, 15_000, 0) + tensors)[:MOST_BYTES]


def _msgpacks() -> Iterator[Shape]:
    yield "lists in lists", b"\x91" * MOST_BYTES
    yield "maps in maps", b"\x81\xa1a" * (MOST_BYTES // 3)
    yield "a long list", b"\xdd\xff\xff\xff\xff" + b"\xc0" * 900_000
    yield "a long map", b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 300_000
    yield "a long text", b"\xdb\xff\xff\xff\xff" + b"a" * 900_000
    yield "arrays in arrays", b"\xc7\xff\x01" * 300_000


def _tars() -> Iterator[Shape]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for n in range(1900):
            file.addfile(tarfile.TarInfo(f"{n:06}.jpg"))
    yield "many members", out.getvalue()[:MOST_BYTES]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo("a" * 400_000)
        info.pax_headers = {f"k{n}": "v" * 20 for n in range(9000)}
        file.addfile(info)
    yield "a long name", out.getvalue()[:MOST_BYTES]
    info = tarfile.TarInfo("a.jpg")
    info.size = 1 << 60
    yield "a giant member", info.tobuf(tarfile.GNU_FORMAT)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = b"L", 0
    yield "long links without end", info.tobuf(tarfile.GNU_FORMAT) * 2000


def _records() -> Iterator[Shape]:
    from penstock.feed.tfrecord import framed

    yield "empty records", b"".join(framed(b"")) * 65_000
    yield "a giant record", struct.pack("<Q", 1 << 62) + bytes(1000)


def _lmdbs() -> Iterator[Shape]:
    """Pages that lead back to each other, from every place of a sound file."""
    data = seeds_of(TARGETS["lmdb"])[0][: 1 << 18]
    pages = [bytearray(data[at : at + 4096]) for at in range(0, len(data), 4096)]
    for number in (0, 1, 2, 7):
        changed = [bytearray(page) for page in pages]
        for page in changed[2:]:
            for at in range(16, 400, 8):
                page[at : at + 8] = struct.pack("<Q", number)
        yield f"all lead to page {number}", b"".join(changed)
    yield "one page everywhere", bytes(pages[0] + pages[1]) + bytes(pages[3]) * 200


def _leveldb(block: bytes) -> bytes:
    body = block + b"\0" + bytes(4)
    handle = bytes([0]) + _varint(len(block))
    index = b"\x00\x01" + bytes([len(handle)]) + b"x" + handle + struct.pack("<II", 0, 1)
    at = len(body)
    body += index + b"\0" + bytes(4)
    foot = bytes([0, 0]) + _varint(at) + _varint(len(index))
    return body + foot.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _tf_indexes() -> Iterator[Shape]:
    assert _tf_index()
    restarts = struct.pack("<II", 0, 1)
    entry = b"\x00\x06\x08%06d\x08\x01\x12\x04\x12\x02\x08\x10"
    yield "many entries", _leveldb(b"".join(entry % n for n in range(40_000)) + restarts)
    shape = b"\x12\x02\x08\x7f" * 200_000
    value = b"\x08\x01\x12" + _varint(len(shape)) + shape
    yield "many dimensions", _leveldb(b"\x00\x01" + _varint(len(value)) + b"w" + value + restarts)
    packed = b"\x80\x80\x80\x80\x0f" + b"\xfe\x01\x00" * 300_000  # snappy: copies of 64 bytes
    yield "snappy grows", _leveldb_packed(packed)


def _leveldb_packed(block: bytes) -> bytes:
    body = bytearray(_leveldb(block))
    body[len(block)] = 1
    return bytes(body)


def _xspaces() -> Iterator[Shape]:
    from penstock.interop.wire import message, number

    event = message(4, number(1, 1) + number(2, 5) + number(3, 7))
    names = message(4, number(1, 1) + message(2, number(1, 1) + message(2, "IteratorGetNext")))
    line = message(3, number(1, 1) + message(2, "python") + event * 60_000)
    yield "many events", message(1, number(1, 1) + message(2, "/host:CPU") + line + names)
    yield "many planes", message(1, number(1, 1)) * 200_000
    empty = message(3, number(1, 1))
    yield "many lines", message(1, number(1, 1) + message(2, "/host:CPU") + empty * 200_000)
    yield "many names", message(1, b"".join(
        message(4, number(1, n) + message(2, number(1, n) + message(2, "a")))
        for n in range(50_000)))  # fmt: skip
    deep = b""
    while len(deep) < 400_000:
        deep = message(1, deep)
        if len(deep) > 20_000:
            break
    yield "depth", deep


def _patterns() -> Iterator[Shape]:
    yield "many patterns", b"data = [" + b'"^/a/b",' * 100_000 + b"]\n"
    yield "a pattern that grows", b'data = ["((a{100}){100}){100}"]\n'
    yield "a long pattern", b'data = ["' + b"(a|b)*" * 100_000 + b'"]\n'
    yield "many groups", b'data = ["' + b"(" * 900 + b")" * 900 + b'"]\n'


def _faults() -> Iterator[Shape]:
    from fuzz.targets import _reseal_faults

    sound = seeds_of(TARGETS["page-faults"])[1]
    for kind, record in ((1, 24 + 8), (2, 24), (3, 40), (4, 72)):
        n = (MOST_BYTES - len(sound)) // (16 + record)
        chunk = struct.pack("<IIII", kind, 16 + record, 0, 0)
        bodies = (chunk + struct.pack("<IIII", i, 8, i, 0) + b"a" * (record - 16) for i in range(n))
        yield f"many chunks of kind {kind}", _reseal_faults(sound + b"".join(bodies))


def _lines() -> Iterator[Shape]:
    entry = json.dumps(
        {
            "source": "/a",
            "copy": "a",
            "size_bytes": 1,
            "mtime_ns": 1,
            "ctime_ns": 1,
            "ino": 1,
            "dev": 1,
            "checksum": "a",
            "names": ["/b"] * 90_000,
        }
    ).encode()
    yield "many names", entry + b"\n"
    yield "many lines", b"{}\n" * (MOST_BYTES // 3)


_JSON: tuple[str, ...] = (
    "report-json", "beside-run", "beside-ceilings", "beside-fill", "beside-classes",
    "beside-manifest", "torch-profile", "tier-list", "ladder-json", "study-results",
    "checkpoint-hugging-face", "checkpoint-trainer-state", "checkpoint-orbax", "save-manifest",
    "stage-plan", "stage-manifest", "host-samples", "dftracer",
)  # fmt: skip
_OWN: dict[str, tuple[Shapes, ...]] = dict.fromkeys(_JSON, (_texts,))


def _add(name: str, *more: Shapes) -> None:
    _OWN[name] = (*_OWN.get(name, ()), *more)


_add("log", _logs)
_add("live", _logs)
_add("tables-of-a-log", _logs)
_add("host-samples", _sampled)
_add("page-faults", _faults)
_add("imported-table", _tables)
_add("reduced", _reduced_files)
_add("beside-run", _values("still", "streams", "machine", "residency", "mounts", "clock", "rank"))
_add("beside-fill", _values("windows", around=lambda v: {"tier": "a", "limit_bps": 1.0} | v))
_add("beside-manifest", _values("parts", "logs"))
_add("beside-classes", _patterns)
for _name in ("dftracer-packed", "torch-profile-packed", "judge-gzip"):
    _add(_name, _gzips)
_add("darshan", _darshans)
for _name, _entry in (("judge-npz", "a.npy"), ("judge-torch", "a/data.pkl")):
    _add(_name, _zips(_entry))
for _name in ("judge-pickle", "inert-pickle", "decoded-record", "judge-torch"):
    _add(_name, _pickles)
_add("checkpoint-dcp-metadata", _pickles)
for _name in ("judge-npy", "decoded-record"):
    _add(_name, _npys)
_add("judge-safetensors", _safetensors)
_add("judge-gguf", _ggufs)
_add("judge-msgpack", _msgpacks)
_add("tar", _tars)
_add("decoded-record", _tars)
_add("tfrecord", _records)
_add("lmdb", _lmdbs)
_add("checkpoint-tensorflow-index", _tf_indexes)
_add("xplane", _xspaces)
_add("stage-manifest", _lines)


def tried_apart(target: Target, data: bytes) -> tuple[str, float, float]:
    """Read a shape in a process of its own.  Return why it is a finding, "" if not; CPU seconds;
    the most memory in MB, of that process and of those that it started."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        os.close(reading)
        why = tried_once(target, data)
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        if not why and child > MOST_CHILD_BYTES:
            why = f"took {child / 1e6:,.0f} MB in a process of its own"
        os.write(writing, why.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        why = pipe.read().decode(errors="replace")
    _, status, used = os.wait4(pid, 0)
    if status and not why:
        why = f"died with status {status}"
    return why, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def main() -> int:
    bad = 0
    for name in sys.argv[1:] or sorted(TARGETS):
        for title, data in shapes_of(name):
            why, cpu_s, mb = tried_apart(TARGETS[name], data)
            bad += bool(why)
            print(f"{'FOUND ' * bool(why)}{name}: {title} ({len(data):,} bytes): {cpu_s:.1f} s,"
                  f" {mb:,.0f} MB {why}", flush=True)  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
