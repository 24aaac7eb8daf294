"""A target for each reader of files, with small sound files, a function that reads a file, and the
documented errors.  TARGETS has all targets; READ_BY has the targets of each command's arguments
(tests/test_fuzz.py compares READ_BY with the command line)."""

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import random
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import logwriter
from fuzz.mutation import INTERESTING, WORDS, Mutator, inside_zlib, plain, sealed
from penstock.errors import (
    FeedError,
    ForeignError,
    LogError,
    PenstockError,
    RunError,
    SaveError,
    TierError,
)
from penstock.log import faults
from penstock.places import registry
from penstock.recording import system
from penstock.safe import checksums
from penstock.safe.checksums import crc32c

MS = 1_000_000
Seeds = Callable[[Path], list[bytes]]


@dataclass(frozen=True)
class Target:
    """file: name of the file.  seeds: makes sound files in an empty folder.  read: reads the file
    at a path, alone in its folder.  errors: the documented errors."""

    name: str
    file: str
    seeds: Seeds
    read: Callable[[Path], object]
    errors: tuple[type[BaseException], ...]
    mutate: Mutator = plain
    is_slow: bool = False  # a process or an engine for each: few a second


TARGETS: dict[str, Target] = {}


def target(
    file: str, seeds: Seeds, *errors: type[BaseException], mutate: Mutator = plain,
    is_slow: bool = False,
) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:  # fmt: skip
    def note(read: Callable[[Path], object]) -> Callable[[Path], object]:
        name = read.__name__.replace("_", "-")
        TARGETS[name] = Target(name, file, seeds, read, errors, mutate, is_slow)
        return read

    return note


# --- recordings ----------------------------------------------------------------------------------


def _process(pid: int = 100) -> logwriter.Process:
    process = logwriter.training(pid, steps=3)
    process.fold({"file": process.file("/data/own"), "op": "fsync", "calls": 2, "errors": 0,
                  "ticks": 3000, "max_ticks": 2000})  # fmt: skip
    process.header["folded"] = 2
    return process


def _logs(folder: Path) -> list[bytes]:
    golden = Path(__file__).parents[1] / "logs" / "v1.log.gz"
    return [gzip.decompress(golden.read_bytes()), _process().write(folder).read_bytes()]


@target("h.1.1.log", _logs, LogError)
def log(path: Path) -> None:
    from penstock.log.events import read_log
    from penstock.log.header import read_header

    read_header(path)
    known = read_log(path)
    for events in known.events(last=2000):
        assert len(events.start_ns) == len(events)
    list(known.texts())
    known.notes()
    list(known.counters())
    assert isinstance(known.threads, tuple)


@target("h.1.1.log", _logs, LogError, RunError, is_slow=True)
def tables_of_a_log(path: Path) -> None:
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of
    from penstock.runs.run import open_run

    with open_run(path.parent) as run:
        report_of(measure(run))


@target("h.1.1.log", _logs, LogError)
def live(path: Path) -> None:
    from penstock.log.follow import Follower

    follower = Follower(path)
    follower.look()
    follower.look(is_over=True)


def _faults(_: Path) -> list[bytes]:
    from test_faults import written

    return [written(1), written(2)]


def _reseal_faults(data: bytes) -> bytes:
    changed = bytearray(data)
    if len(changed) < 256 or changed[8:12] != b"\2\0\0\0":
        return data
    changed[52:56] = bytes(4)
    changed[52:56] = struct.pack("<I", crc32c(bytes(changed[:256])))
    at = 256
    while at + 16 <= len(changed):
        (size,) = struct.unpack_from("<I", changed, at + 4)
        if not 16 <= size <= len(changed) - at:
            break
        struct.pack_into("<II", changed, at + 8, crc32c(bytes(changed[at : at + 8])),
                         crc32c(bytes(changed[at + 16 : at + size])))  # fmt: skip
        at += size
    return bytes(changed)


@target("h.1.faults", _faults, LogError, mutate=sealed(_reseal_faults))
def page_faults(path: Path) -> None:
    found = faults.read_faults(path)
    assert found.missing >= 0


def _systems(folder: Path) -> list[bytes]:
    sampler = system.Sampler(folder)
    sampler.sample({"12": [9, 0.5, 1, 2, 3, 4]})
    sampler.close()
    return [next(folder.glob("*.system")).read_bytes()]


def _reseal_lines(data: bytes) -> bytes:
    lines = [line.rpartition(b',"crc32":')[0] + b"}" for line in data.split(b"\n") if line]
    return b"".join(checksums.line(line) + b"\n" for line in lines)


@target("h.1.system", _systems, LogError, mutate=sealed(_reseal_lines))
def host_samples(path: Path) -> None:
    from penstock.recording.endings import endings_in

    _, _, samples = system.read_system(path)
    endings_in(samples)


def _reseal_mark(data: bytes) -> bytes:
    at = data.rindex(b"penstock-crc32:") + len(b"penstock-crc32:")
    total = zlib.crc32(data[:at] + b"0" * 8 + data[at + 8 :])
    return data[:at] + b"%08x" % total + data[at + 8 :]


def _reduced(folder: Path) -> list[bytes]:
    from penstock.explain.reduce import reduce_logs

    logs = [_process().write(folder)]
    reduce_logs(folder, logs, folder / "a.reduced")
    return [(folder / "a.reduced").read_bytes()]


@target("a.reduced", _reduced, PenstockError, mutate=sealed(_reseal_mark), is_slow=True)
def reduced(path: Path) -> None:
    from penstock.explain.reduce import report_of_reduced

    report_of_reduced(path, "a")


_RUN = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))


def _run_folder(path: Path) -> Path:
    """Return the folder of a log with tables, made at the first call; the file is put beside."""
    from penstock.runs.run import open_run

    made = _RUN / "run"
    if not made.exists():
        made.mkdir()
        _process().write(made)
        open_run(made).close()
    folder = path.parent / "run"
    shutil.copytree(made, folder)
    return folder


def _table_seeds(name: str) -> Seeds:
    def seeds(folder: Path) -> list[bytes]:
        return [(_run_folder(folder / name) / "tables" / name).read_bytes()]

    return seeds


@target("files.parquet", _table_seeds("files.parquet"), PenstockError,
        mutate=sealed(_reseal_mark), is_slow=True)  # fmt: skip
def imported_table(path: Path) -> None:
    from penstock.runs.run import open_run

    folder = _run_folder(path)
    manifest = json.loads((folder / "tables" / "manifest.json").read_text())
    manifest = manifest | {"imported": "a.darshan", "sum": checksums.MARK}
    text = checksums.seal_text(json.dumps(manifest))
    (folder / "tables" / "manifest.json").write_text(text)
    shutil.copy(path, folder / "tables" / path.name)
    with open_run(folder) as run:
        run.sql("SELECT * FROM files LIMIT 100")


def _json_seeds(*values: Any) -> Seeds:
    return lambda folder: [json.dumps(value).encode() for value in values]


_CEILING = {"path": "/a", "mount": "/", "kind": "ext4", "op": "read", "order": "random",
            "request_bytes": 1, "threads": 1, "bandwidth_bps": 1e9, "calls_hz": 1e3,
            "is_cold": True, "unix_ns": 1}  # fmt: skip
_FACTS = {"host": "vm", "launcher_pid": 99, "end_monotonic_ns": 10**10, "status": 0, "rank": 0,
          "still": ["a"], "streams": ["/out"], "machine": [["cpus", "2"]], "page_faults": "none",
          "residency": {"before": ["named", 1, 200, 100, 0]}, "mounts": {"/": None},
          "clock": {"boot_id": "a", "other_boot_id": "b", "offset_ns": 1,
                    "error_ns": 2}}  # fmt: skip
_FILL = {"tier": "nvme", "limit_bps": 1e9, "is_whole": True, "windows": [[1, 2, 3, True]]}
_BESIDE = {
    "run.json": _json_seeds(_FACTS),
    "ceilings.json": _json_seeds([_CEILING]),
    "fill.json": _json_seeds(_FILL),
    "classes.toml": lambda folder: [b'data = ["^/opt/data/"]\nlibrary = ["a.*b"]\n'],
    "container": lambda folder: [b"docker\n/ /host/root rw\n"],
    "tables/manifest.json": _table_seeds("manifest.json"),
}


def _report_place(run: Any) -> Path:
    """Return a folder that exists if a report was made of the same tables.  A report reads the
    tables and nothing else, and most damages of a file beside the logs leave the tables equal."""
    paths = sorted(run.tables.rglob("*.parquet"))
    beside = [str(run.sql(f"FROM {name}")) for name in ("ceilings", "fills")]
    facts = repr((run.start_unix_ns, run.classes, beside)).encode()
    digest = hashlib.sha256(b"".join([facts, *(path.read_bytes() for path in paths)]))
    return _RUN / "reported" / digest.hexdigest()


def _beside(name: str) -> None:
    def read(path: Path) -> None:
        from penstock.explain.measures import measure
        from penstock.explain.report import report_of
        from penstock.runs.run import open_run

        folder = _run_folder(path)
        shutil.copy(path, folder / name)
        with open_run(folder) as run:
            place = _report_place(run)
            if not place.exists():
                report_of(measure(run))
                place.mkdir(parents=True)

    read.__name__ = "beside_" + name.rpartition("/")[2].partition(".")[0]
    target(name.rpartition("/")[2], _BESIDE[name], PenstockError, is_slow=True)(read)


for _name in _BESIDE:
    _beside(_name)


def _reports(_: Path) -> list[bytes]:
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of, to_json
    from synthetic import training_job

    return [to_json(report_of(measure(training_job())), indent=None).encode()]


def _summaries(_: Path) -> list[bytes]:
    from penstock.explain import summary

    one = summary.RunSummary(
        "a", "train.py", "ann", "n1", "7", "gpu", "x", "/data", "highly", "I/O BOUND", 1e9, 40.0,
        30.0, 8, 10, 1e9, {"data storage": 1.0, "no CPU": 2.0}, {"W1": 1.0},
    )  # fmt: skip
    return [summary.to_json(one).encode()]


@target("report.json", _reports, PenstockError)
def report_json(path: Path) -> None:
    from penstock.explain.report import from_json, to_json
    from penstock.explain.report.anonymous import anonymous
    from penstock.views import html, terminal

    report = from_json(path.read_text(encoding="utf-8", errors="surrogateescape"))
    to_json(report)
    terminal.render(report)
    html.render(report, b"")
    anonymous(report)


@target("summary.json", _summaries, PenstockError)
def run_summary(path: Path) -> None:
    from penstock.explain import fleet, summary
    from penstock.views import fleet as view

    found = fleet.fleet_of(path.parent)
    view.render(found, 80)
    view.markup_of(found)
    summary.read(path)


# --- other tools ---------------------------------------------------------------------------------

_DFTRACER = b"""[
{"name":"FH","cat":"dftracer","pid":1,"tid":1,"ph":"M","args":{"name":"/a/b","value":"77"}}
{"id":1,"name":"read","cat":"POSIX","pid":1,"tid":1,"ts":1700000000000000,"dur":5,"ph":"X",\
"args":{"fhash":"77","ret":4,"hhash":"1","size_sum":4}}
{"id":2,"name":"open64","cat":"POSIX","pid":1,"tid":1,"ts":1700000000000100,"dur":5,"ph":"X",\
"args":{"fhash":"77","ret":4}}
{"id":3,"name":"train","cat":"dlio_benchmark","pid":1,"tid":1,"ts":1700000000000200,"dur":50,\
"ph":"X","args":{"epoch":1,"step":2}}
]
"""


@target("a.pfw", lambda _: [_DFTRACER], RunError, is_slow=True)
def dftracer(path: Path) -> None:
    from penstock.interop.dftracer import import_traces

    import_traces([path], path.parent / "imported")


def _inside_gzip(draws: random.Random, data: bytes) -> bytes:
    try:
        return gzip.compress(plain(draws, gzip.decompress(data)), 1)
    except (OSError, EOFError, zlib.error):
        return plain(draws, data)


@target("a.pfw.gz", lambda _: [gzip.compress(_DFTRACER)], RunError, mutate=_inside_gzip,
        is_slow=True)  # fmt: skip
def dftracer_packed(path: Path) -> None:
    dftracer(path)


_TORCH = {"schemaVersion": 1, "baseTimeNanoseconds": 5, "traceEvents": [
    {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 1e15, "dur": 3,
     "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"},
    {"ph": "X", "cat": "gpu_memcpy", "pid": 0, "tid": 7, "ts": 1e15, "dur": 3,
     "name": "Memcpy HtoD (Pageable -> Device)", "args": {"bytes": 10}},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]}  # fmt: skip


@target("t.json", _json_seeds(_TORCH), ForeignError)
def torch_profile(path: Path) -> None:
    from penstock.interop.torch_profiler import read

    read(path)


@target("t.json.gz", lambda _: [gzip.compress(json.dumps(_TORCH).encode())], ForeignError,
        mutate=_inside_gzip)  # fmt: skip
def torch_profile_packed(path: Path) -> None:
    torch_profile(path)


def _xspaces(_: Path) -> list[bytes]:
    from penstock.interop.wire import message, number

    event = message(4, number(1, 1) + number(2, 5) + number(3, 7))
    line = message(3, number(1, 1) + message(2, "python") + number(3, 10**18) + event)
    name = message(4, number(1, 1) + message(2, number(1, 1) + message(2, "IteratorGetNext")))
    return [message(1, number(1, 1) + message(2, "/host:CPU") + line + name) + message(4, "vm")]


@target("t.xplane.pb", _xspaces, ForeignError)
def xplane(path: Path) -> None:
    from penstock.interop.xplane import read

    read(path)


def _darshan_logs(_: Path) -> list[bytes]:
    import darshan

    samples = sorted(
        Path(darshan.__file__).parent.rglob("*.darshan"), key=lambda p: p.stat().st_size
    )
    return [sample.read_bytes() for sample in samples[:2]]


@target("a.darshan", _darshan_logs, RunError, mutate=inside_zlib, is_slow=True)
def darshan(path: Path) -> None:
    from penstock.interop.darshan_logs import import_logs

    import_logs([path], path.parent / "imported")


def _darshan_arrays(folder: Path) -> list[bytes]:
    from penstock.interop.darshan_library import read_log

    found = []
    for n, data in enumerate(_darshan_logs(folder)):
        (folder / f"{n}.darshan").write_bytes(data)
        read_log(str(folder / f"{n}.darshan"), str(folder / f"{n}.npz"))
        found.append((folder / f"{n}.npz").read_bytes())
    return found


def _other_values(draws: random.Random, data: bytes) -> bytes:
    """Return the arrays of Darshan's reader with any values in the same shapes."""
    with np.load(io.BytesIO(data)) as packed:
        arrays = dict(packed)
    name = draws.choice([key for key in arrays if arrays[key].size])
    if name == "facts":
        facts = _other_leaf(draws, json.loads(bytes(arrays[name])))
        arrays[name] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    else:
        flat = np.ascontiguousarray(arrays[name]).view("<i8").copy().reshape(-1)
        for _ in range(1 << draws.randrange(5)):
            number = draws.choice(INTERESTING) + draws.randrange(-2, 3)
            flat[draws.randrange(len(flat))] = (number + (1 << 63)) % (1 << 64) - (1 << 63)
        arrays[name] = flat.view(arrays[name].dtype).reshape(arrays[name].shape)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def _other_leaf(draws: random.Random, value: Any) -> Any:
    """Return the value with another number or text of the same C type in one place."""
    if isinstance(value, dict) and value:
        key = draws.choice(sorted(value))
        return value | {key: _other_leaf(draws, value[key])}
    if isinstance(value, list) and value:
        at = draws.randrange(len(value))
        return [*value[:at], _other_leaf(draws, value[at]), *value[at + 1 :]]
    if type(value) is int:
        return draws.choice(INTERESTING) % (1 << 63) - draws.choice((0, 0, 1 << 63))
    if isinstance(value, str):
        return draws.choice(WORDS).decode("utf-8", "backslashreplace").replace("\0", "") + value
    return value


@target("a.npz", _darshan_arrays, RunError, mutate=_other_values)
def darshan_records(path: Path) -> None:
    """Read records of any values, in the form that the reader of Darshan's library returns."""
    from penstock.interop import darshan_logs

    def passed_on(log: Path, into: Path) -> str:
        shutil.copy(path, into)
        return ""

    real, darshan_logs._read_apart = darshan_logs._read_apart, passed_on
    try:
        log = darshan_logs._read(path)
        build = darshan_logs._Build([log])
        build.add(0, log)
        build.columns()
    finally:
        darshan_logs._read_apart = real


# --- data sets -----------------------------------------------------------------------------------


def _lmdbs(folder: Path) -> list[bytes]:
    from test_feed_index_lmdb import written

    found = []
    for version in (0, 1):
        place = folder / str(version)
        written(place, 5, version, n=40, rounds=4)
        found.append((place / "data.mdb").read_bytes()[: 1 << 18])
    return found


def _indexed(path: Path) -> None:
    from penstock.feed.index import described, from_bytes, open_index, to_bytes

    index = open_index(str(path), cache=False)
    described(index)
    from_bytes(to_bytes(index))
    sizes = path.stat().st_size
    ends = index.offset + index.length
    assert not len(index) or (int(index.offset.min()) >= 0 and int(ends.max()) <= sizes)


@target("data.mdb", _lmdbs, FeedError)
def lmdb(path: Path) -> None:
    _indexed(path)


def _tars(_: Path) -> list[bytes]:
    found = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            for n, name in enumerate(
                ("0.jpg", "0.cls", "a" * (90 if n_long(form) else 10) + ".jpg")
            ):
                info = tarfile.TarInfo(name)
                info.size = n * 100
                tar.addfile(info, io.BytesIO(bytes(n * 100)))
        found.append(out.getvalue())
    return found


def n_long(form: int) -> bool:
    return form != tarfile.USTAR_FORMAT


@target("a.tar", _tars, FeedError)
def tar(path: Path) -> None:
    _indexed(path)


def _tfrecords(_: Path) -> list[bytes]:
    from penstock.feed.tfrecord import framed

    return [b"".join(framed(bytes([n]) * 50 * n) for n in range(5))]


@target("a.tfrecord", _tfrecords, FeedError)
def tfrecord(path: Path) -> None:
    from penstock.feed.index import open_index
    from penstock.feed.tfrecord import wrong_payloads

    _indexed(path)
    index = open_index(str(path), cache=False)
    list(wrong_payloads(str(path), index.offset, index.length))


def _indexes(folder: Path) -> list[bytes]:
    from penstock.feed.index import open_index, to_bytes

    (folder / "a.tfrecord").write_bytes(_tfrecords(folder)[0])
    (folder / "a.tar").write_bytes(_tars(folder)[0])
    return [
        to_bytes(open_index(str(folder / name), cache=False)) for name in ("a.tfrecord", "a.tar")
    ]


def _reseal_index(data: bytes) -> bytes:
    from penstock.feed.index import HEADER, MAGIC, VERSION

    body = data[HEADER.size :]
    text = HEADER.unpack_from(data)[4]
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body), len(body), text) + body


@target("a.index", _indexes, FeedError, mutate=sealed(_reseal_index))
def index_cache(path: Path) -> None:
    from penstock.feed.index import described, from_bytes

    index = from_bytes(path.read_bytes())
    described(index)
    if len(index):
        index.key(0)
        index.key(len(index) - 1)


# --- checkpoints ---------------------------------------------------------------------------------


def _judged(name: str, seeds: Seeds, title: str) -> None:
    def read(path: Path) -> None:
        from penstock.save.check.foreign import Damage, Scope
        from penstock.save.check.judges import check_file

        with path.open("rb") as file:
            try:
                check_file(file, name, path.stat().st_size, Scope("full"))
            except Damage:
                return

    read.__name__ = f"judge_{title}"
    target(name, seeds, SaveError)(read)


def _npy(_: Path) -> list[bytes]:
    out = io.BytesIO()
    np.save(out, np.arange(60, dtype="<f4").reshape(3, 20))
    return [out.getvalue()]


def _npz(_: Path) -> list[bytes]:
    out, packed = io.BytesIO(), io.BytesIO()
    np.savez(out, a=np.arange(9), b=np.zeros((2, 3)))
    np.savez_compressed(packed, a=np.arange(900))
    return [out.getvalue(), packed.getvalue()]


def _torch(folder: Path) -> list[bytes]:
    import torch

    state = {"model": {"w": torch.zeros(4, 3)}, "step": 5, "optimizer": {"lr": 0.1}}
    torch.save(state, folder / "a.pt")
    torch.save(state, folder / "b.pt", _use_new_zipfile_serialization=False)
    return [(folder / name).read_bytes() for name in ("a.pt", "b.pt")]


def _hdf5(folder: Path) -> list[bytes]:
    import h5py

    found = []
    for version in ("earliest", "latest"):
        with h5py.File(folder / version, "w", libver=version) as file:
            file["model/w"] = np.zeros((4, 5), "f4")
            file.create_dataset("packed", data=np.zeros(2000), chunks=(500,), compression="gzip")
            file.attrs["keras_version"] = "3.1"
        found.append((folder / version).read_bytes())
    return found


def _safetensors(_: Path) -> list[bytes]:
    head = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                       "__metadata__": {"a": "b"}}).encode()  # fmt: skip
    return [struct.pack("<Q", len(head)) + head + bytes(24)]


def _gguf(_: Path) -> list[bytes]:
    text = struct.pack("<Q", 4) + b"name" + struct.pack("<IQ", 8, 3) + b"abc"
    tensor = struct.pack("<Q", 1) + b"w" + struct.pack("<IQIQ", 1, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text + tensor
    return [head + bytes(-len(head) % 32) + bytes(64)]


_JUDGES: dict[str, tuple[str, Seeds]] = {
    "npy": ("a.npy", _npy),
    "npz": ("a.npz", _npz),
    "torch": ("a.pt", _torch),
    "hdf5": ("a.h5", _hdf5),
    "safetensors": ("a.safetensors", _safetensors),
    "gguf": ("a.gguf", _gguf),
    "msgpack": ("a.msgpack", lambda _: [b"\x82\xa1a\x93\x01\xc4\x03abc\xcb" + bytes(8)
                                         + b"\xa1b\xc7\x05\x01\x93\x91\x02\xa2f4"]),
    "pickle": ("a.pkl", lambda _: [pickle.dumps({"a": [1, 2.5, None], "b": np.zeros(3)}, protocol)
                                   for protocol in (0, 2, 4, 5)]),
    "gzip": ("a.tar.gz", lambda _: [gzip.compress(bytes(500))]),
}  # fmt: skip
for _title, (_file, _made) in _JUDGES.items():
    _judged(_file, _made, _title)


@target("optimizer.pt", _JUDGES["pickle"][1])
def inert_pickle(path: Path) -> None:
    from penstock.save.check.pickles import Refused, inert

    try:
        inert(path.read_bytes(), {"a", "state"})
    except Refused:
        return


def _save_manifests(_: Path) -> list[bytes]:
    from penstock.save.manifest import FileSum, Manifest, to_json

    known = {"files": (FileSum("model.pt", 10, bytes(8)),), "step": 5}
    named = dict(_defaults(Manifest)) | known
    return [to_json(Manifest(**named))]


def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """Return a value for each field of a dataclass, by the name of the type."""
    values = {"str": "a", "int": 1 << 20, "dict": {}, "tuple": (), "Mapping": {}}
    return [
        (field.name, next((v for k, v in values.items() if str(field.type).startswith(k)), None))
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def _reseal_manifest(data: bytes) -> bytes:
    from penstock.save.manifest import _seal

    body = json.loads(data)
    body.pop("seal", None)
    return json.dumps({**body, "seal": _seal(body)}).encode() + b"\n"


@target("manifest.json", _save_manifests, SaveError, mutate=sealed(_reseal_manifest))
def save_manifest(path: Path) -> None:
    from penstock.save.manifest import parse, to_json

    to_json(parse(path.read_bytes(), str(path)))


def _folder_of(name: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from penstock.places.stores import open_store
        from penstock.save.find.formats import find
        from penstock.save.verify import verify

        place = path.parent / "tier"
        (place / name).parent.mkdir(parents=True)
        shutil.copy(path, place / name)
        for beside in ("model.safetensors", "ckpt-1.data-00000-of-00001", "__0_0.distcp"):
            (place / name).with_name(beside).write_bytes(bytes(64))
        for checkpoint in find(open_store(str(place))):
            verify(checkpoint, "full")

    return read


_WHOLE: dict[str, tuple[str, Seeds]] = {
    "tensorflow_index": ("ckpt-1.index", lambda folder: _tf_index()),
    "hugging_face": ("step_1/model.safetensors.index.json", _json_seeds(
        {"metadata": {"total_size": 64}, "weight_map": {"w": "model.safetensors"}})),
    "trainer_state": ("checkpoint-1/trainer_state.json", _json_seeds(
        {"global_step": 1, "epoch": 0.5, "log_history": [{"loss": 1.0, "step": 1}]})),
    "dcp_metadata": ("step_1/.metadata", lambda _: [pickle.dumps({"state_dict_metadata": {}})]),
    "orbax": ("1/_CHECKPOINT_METADATA", _json_seeds(
        {"item_handlers": {}, "commit_timestamp_nsecs": 1})),
    "latest": ("latest", lambda _: [b"global_step5\n"]),
    "checkpoint_text": ("checkpoint", lambda _: [
        b'model_checkpoint_path: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-1"\n']),
}  # fmt: skip


def _tf_index() -> list[bytes]:
    """Return a LevelDB table with one block, like TensorFlow's index."""
    entry = b"\x00\x01\x08" + b"w" + b"\x08\x01\x12\x04\x12\x02\x08\x10\x28\x40"[:8]
    block = entry + struct.pack("<II", 0, 1)
    body = block + b"\0" + bytes(4)
    handle = bytes([0, len(block)])
    index = b"\x00\x01" + bytes([len(handle)]) + b"x" + handle + struct.pack("<II", 0, 1)
    at = len(body)
    body += index + b"\0" + bytes(4)
    foot = bytes([0, 0]) + bytes([at, len(index)])
    return [body + foot.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)]


for _title, (_file, _made) in _WHOLE.items():
    _read = _folder_of(_file)
    _read.__name__ = f"checkpoint_{_title}"
    target(_file.rpartition("/")[2], _made, SaveError, TierError)(_read)


# --- tiers ---------------------------------------------------------------------------------------


@target("tiers.json", _json_seeds({"version": 1, "tiers": {"nvme": {
    "path": "/mnt/nvme", "mount": "/", "capacity_bytes": None, "read_bps": 1e9,
    "costs": {"open_s": 0.1, "call_s": 0.1, "byte_s": 1e-9}, "measured_unix_ns": 5}}}),
    TierError)  # fmt: skip
def tier_list(path: Path) -> None:
    import os

    before = os.environ.get(registry.ENVIRONMENT)
    os.environ[registry.ENVIRONMENT] = str(path)
    try:
        registry.registered()
    finally:
        if before is None:
            del os.environ[registry.ENVIRONMENT]
        else:
            os.environ[registry.ENVIRONMENT] = before


def _stage_lines(_: Path) -> list[bytes]:
    from penstock.stage.manifest import Identity, StagedCopy

    entries = [StagedCopy("/data/a", "data/a", Identity(1, 2, 3, 4, 5), "ab", ("/b",), 0.5, False),
               StagedCopy("s3://a/b", "s3/b", Identity(1, 2, 3, 4, 5), "cd")]  # fmt: skip
    return [b"".join(entry.line() for entry in entries) + b'{"gone": "data/a"}\n']


def _tier_at(path: Path) -> Any:
    return SimpleNamespace(path=path.parent, name="t")


@target("manifest.jsonl", _stage_lines, TierError)
def stage_manifest(path: Path) -> None:
    from penstock.stage.manifest import TierPlace

    place = TierPlace(_tier_at(path))
    place.manifest = path
    place.look = lambda: None  # type: ignore[method-assign]
    place.entries()


_RUNG = {"place": "disk", "rung": "skip", "processes": 1, "repeat": 0, "records": 5,
         "record_bytes": 10, "wall_s": 1.0, "setup_s": 0.1, "records_hz": 5.0,
         "bandwidth_bps": 50.0,
         "device_bytes": 50, "device_requests": 5, "user_s": 0.1, "system_s": 0.1, "sleep_s": 0.1,
         "major_faults": 1, "minor_faults": 2, "voluntary_switches": 3, "involuntary_switches": 4,
         "resident_share": 0.5}  # fmt: skip
_POINT = {"run": _RUNG, "least_hz": 4.0, "most_hz": 6.0, "repeats": 3}


@target("ladder.json", _json_seeds({"points": [_POINT], "machine": {"cpus": 2}}), PenstockError)
def ladder_json(path: Path) -> None:
    from penstock_lab.model import read_points

    read_points(path)


@target("plan.jsonl", lambda _: [
    b'{"penstock_plan": 1}\n{"path": "/data/a", "gain_s": 0.5}\n{"path": "/b", "gain_s": 1}\n'],
    TierError)  # fmt: skip
def stage_plan(path: Path) -> None:
    from penstock.stage.planfile import is_plan, load

    is_plan(path)
    load(path)


@target("objects.jsonl", lambda _: [
    b'{"endpoint": "a:80", "bucket": null, "path": "/a/b", "size_bytes": 5, "fetched_bytes": 10, '
    b'"requests": 2, "processes": 1, "request_s": 0.5, "is_tls": false}\n'], TierError)  # fmt: skip
def stage_object_plan(path: Path) -> None:
    from penstock.stage.objects import is_plan, load

    is_plan(path)
    load(path)


def _object_copies(_: Path) -> list[bytes]:
    from penstock.stage.catalog import ObjectCopy

    copies = [ObjectCopy("http://a:80/b", "url/b", 5, 6, '"e"', "", (("ETag", '"e"'),)),
              ObjectCopy("http://a:80/c", "url/c", 5, 6, "", "Mon", (), True)]  # fmt: skip
    return [b"".join(copy.line() for copy in copies)]


@target("objects.jsonl", _object_copies, TierError)
def stage_object_copies(path: Path) -> None:
    from penstock.stage.catalog import read

    read(path)


@target("record", lambda folder: [*_npy(folder), *_tars(folder)[:1], *_JUDGES["pickle"][1](folder),
    b"\x08\x03\x10\x02\x18\x02\x22\x0c" + bytes(12) + b"\x28\x05"], FeedError)  # fmt: skip
def decoded_record(path: Path) -> None:
    from penstock.feed import decode

    record = path.read_bytes()
    decode.content_of(record)
    for read in (decode.decoded, decode.sample, decode.npy, decode.datum):
        try:
            read(record)
        except FeedError:
            continue


def _studies(_: Path) -> list[bytes]:
    from penstock_lab.study import Measure, Point

    def filled(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
        return dict(_defaults(kind)) | known

    values: dict[str, Any] = {name: {"wall": 1.0} for name in ("values", "least", "most")}
    point = filled(Point, {"factors": {"a": 1}, "repeats": 3, **values})
    measure = filled(Measure, {"key": "wall", "title": "wall", "unit": "s"})
    value = {"study": "read", "scale": "small", "settings": {"a": 1}, "machine": {"cpus": 2},
             "factors": ["a"], "measures": [measure], "points": [point]}  # fmt: skip
    return [json.dumps(value).encode()]


@target("results.json", _studies, TierError)
def study_results(path: Path) -> None:
    from penstock_lab.beside import compared, to_json

    to_json(compared(path, path))


# --- the readers of each command -----------------------------------------------------------------

# What a run folder holds.  Tables of logs are made again when damaged; imported ones are refused.
_OF_A_RUN = (
    "log tables-of-a-log page-faults host-samples imported-table beside-run beside-ceilings"
    " beside-fill beside-classes beside-container beside-manifest"
)
_CHECKPOINTS = " ".join(
    name for name in TARGETS if name.startswith(("judge-", "checkpoint-", "save-", "inert-"))
)
_DATA_SETS = "lmdb tar tfrecord index-cache decoded-record"
_TIER = "tier-list stage-manifest stage-object-copies"
_NONE = "-"  # a name, a folder that is filled, a program, a query: nothing of it is parsed
_STUDIES = ("burst", "cases", "ceiling", "control", "diagnosis", "exchange", "factors", "mlperf",
            "nodes", "read", "scale", "train", "window")  # fmt: skip
# {command: {argument: targets}}; report-json is what TensorBoard's plugin reads below its logdir.
READ_BY: dict[str, dict[str, str]] = {
    **{f"bench {study}": {"folder": _NONE} for study in _STUDIES},
    "bench checkpoint": {"folder": _NONE, "slow": _NONE},
    "bench compare": {"a": "study-results", "b": "study-results"},
    "bench data": {"kind": _NONE, "folder": _NONE},
    "bench ladder": {"folder": _NONE, "given": "lmdb"},
    "bench model": {"ladder_json": "ladder-json"},
    "bench provenance": {"folder": _NONE},
    "bench tier make": {"name": _NONE, "folder": _NONE},
    "bench tier remove": {"names": _NONE},
    "bench tier run": {"name": _NONE, "command": _NONE},
    "ceiling": {"place": _OF_A_RUN, "keep": _OF_A_RUN},
    "check": {"run": _OF_A_RUN, "baseline": _OF_A_RUN},
    "compare": {"runs": _OF_A_RUN, "more_a": _OF_A_RUN, "more_b": _OF_A_RUN},
    "export": {"run": _OF_A_RUN},
    "feed bench": {"path": _DATA_SETS},
    "feed inspect": {"path": _DATA_SETS},
    "feed verify": {"path": _DATA_SETS},
    "gather": {"folders": _OF_A_RUN},
    "import": {"sources": "darshan darshan-records dftracer dftracer-packed"},
    "mcp": {"folder": _OF_A_RUN},
    "reduce": {"sources": f"{_OF_A_RUN} reduced"},
    "report": {"run": f"{_OF_A_RUN} reduced"},
    "run": {"command": _NONE},
    "runs": {"folder": f"run-summary {_OF_A_RUN}"},
    "save drain": {"fast": _CHECKPOINTS, "slow": _CHECKPOINTS, "run": _OF_A_RUN},
    "save ls": {"tiers": _CHECKPOINTS, "run": _OF_A_RUN},
    "save prune": {"fast": _CHECKPOINTS, "slow": _CHECKPOINTS},
    "save recover": {"fast": _CHECKPOINTS, "slow": _CHECKPOINTS},
    "save verify": {"place": _CHECKPOINTS},
    "sql": {"run": _OF_A_RUN, "query": _NONE},
    "stage copy": {"what": f"stage-plan stage-object-plan {_OF_A_RUN}"},
    "stage evict": {"tier": _TIER},
    "stage fill": {"what": f"stage-plan {_OF_A_RUN}"},
    "stage objects": {"run": _OF_A_RUN},
    "stage plan": {"run": _OF_A_RUN},
    "stage status": {"tier": _TIER},
    "stage verify": {"tier": _TIER},
    "tensorboard": {"run": f"{_OF_A_RUN} report-json"},
    "tune": {"command": _NONE},
    "tiers add": {"name": _NONE, "folder": _TIER},
    "tiers measure": {"name": _TIER},
    "tiers remove": {"name": _TIER},
    "timeline": {"run": _OF_A_RUN, "profile": "torch-profile torch-profile-packed xplane"},
    "watch": {"run": "live"},
    "whatif": {"run": _OF_A_RUN, "tier": _NONE},
    "predict": {"run": _OF_A_RUN, "tier": _NONE},
    "window": {"run": "log"},
}
