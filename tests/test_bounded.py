"""Small hostile files: refused in a sentence, at once, in little memory."""

import gzip
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.safe import bounded

PENSTOCK = Path(sys.executable).with_name("penstock")
# A ceiling of this file's memory beyond what the command takes with nothing to read.
MOST_KB = 300_000
ROW = {
    "path": "/a",
    "mount": "/",
    "kind": "ext4",
    "op": "read",
    "order": "random",
    "request_bytes": 1,
    "threads": 1,
    "bandwidth_bps": 1e9,
    "calls_hz": 1e3,
    "is_cold": True,
    "unix_ns": 1,
}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bounded")
    words = [PENSTOCK, "run", "-q", "-o", "run", "cat", "/etc/hostname"]
    subprocess.run(words, cwd=place, check=True, capture_output=True, timeout=120)
    subprocess.run([PENSTOCK, "sql", "run", "select 1"], cwd=place, check=True, capture_output=True)
    return place / "run"


def asked(words: list[str | Path], folder: Path) -> tuple[int, str, int]:
    """Status, what was said, and the most memory in kB."""
    code = (
        "import resource, subprocess, sys\n"
        "status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "print('\\n', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    said, _, memory = done.stderr.rstrip().rpartition("\n")
    return done.returncode, said.strip(), int(memory)


def _written(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text)


def _fifo(name: str) -> Callable[[Path], object]:
    return lambda run: os.mkfifo(run / name)


def _device(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_written("ceilings.json", json.dumps([{**ROW, "request_bytes": [1]}])), "is [1]"),
        (_written("ceilings.json", json.dumps([{**ROW, "request_bytes": {}}])), "is {}"),
        (_written("ceilings.json", json.dumps([{**ROW, "threads": None}])), "is None"),
        (_written("ceilings.json", "[" * 100_000), "deeper than 32"),
        (_written("ceilings.json", "[" * 100 + "]" * 100), "deeper than 32"),
        (_written("fill.json", '{"tier":' + "[" * 100_000), "deeper than 32"),
        (_written("classes.toml", "data = " + "[" * 5000 + "]" * 5000), "deeper than 32"),
        (_fifo("ceilings.json"), "no regular file"),
        (_fifo("fill.json"), "no regular file"),
        (_fifo("classes.toml"), "no regular file"),
        (_device("ceilings.json"), "no regular file"),
        (_device("classes.toml"), "no regular file"),
    ],
)
def test_a_side_file_that_harms_is_refused_in_a_sentence(
    damage: Callable[[Path], object], said: str, intact: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(intact, run)
    damage(run)
    status, words, memory = asked([PENSTOCK, "sql", "run", "select 1"], tmp_path)
    assert (status, words.count("\n")) == (2, 0), words
    assert said in words
    assert memory < MOST_KB


@pytest.mark.parametrize(
    "name", ["run.json", "container", "control", "clock", "tables/manifest.json"]
)
def test_a_side_file_that_may_be_missing_is_passed_over(
    name: str, intact: Path, tmp_path: Path
) -> None:
    for damage in (_fifo(name), _device(name), _written(name, "[" * 100_000)):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(intact, run)
        (run / name).unlink(missing_ok=True)
        damage(run)
        status, words, memory = asked([PENSTOCK, "sql", "run", "select 1"], tmp_path)
        assert status == 0, words
        assert memory < MOST_KB


def test_a_file_is_read_as_far_as_its_limit_and_the_limit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert bounded.read(tmp_path / "a", 100) == b"x" * 100
    with pytest.raises(ValueError, match="larger than 99 bytes"):
        bounded.read(tmp_path / "a", 99)
    (tmp_path / "b").write_text('{"a": ' + "[" * 30 + "]" * 30 + "}")
    assert bounded.json_of(tmp_path / "b")["a"]
    with pytest.raises(FileNotFoundError):
        bounded.json_of(tmp_path / "none")


# --- packed traces -------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["{},", "[],", "0,", '"a",', '{"a":0},'])
def test_a_small_profile_that_grows_is_refused_in_little_memory(
    values: str, intact: Path, tmp_path: Path
) -> None:
    with gzip.open(tmp_path / "trace.json.gz", "wb", 6) as file:
        file.write(b'{"traceEvents":[')
        for _ in range(20):
            file.write(values.encode() * (4_000_000 // len(values)))
        file.write(b"{}]}")
    assert (tmp_path / "trace.json.gz").stat().st_size < 1_000_000
    words = ["timeline", intact, "--with", "trace.json.gz", "-o", "t.json"]
    status, said, memory = asked([PENSTOCK, *words], tmp_path)
    assert status == 2
    assert "it unpacks to more than a trace of its size holds" in said
    assert memory < MOST_KB


def test_a_small_trace_that_grows_is_refused_in_little_memory(tmp_path: Path) -> None:
    event = (
        b'{"name":"read","cat":"POSIX","pid":1,"tid":1,"ts":1700000000000000,"dur":5,"ph":"X",'
        b'"args":{"fhash":1,"ret":4}}\n'
    )
    with gzip.open(tmp_path / "many.pfw.gz", "wb", 9) as file:
        file.write(b"[\n")
        for _ in range(25):
            file.write(event * 40_000)
    assert (tmp_path / "many.pfw.gz").stat().st_size < 1_000_000
    status, said, memory = asked([PENSTOCK, "import", "many.pfw.gz", "-o", "run"], tmp_path)
    assert status == 2
    assert "it unpacks to more than a trace of its size holds" in said
    assert memory < MOST_KB


# --- shapes --------------------------------------------------------------------------------------


def test_the_time_for_a_tensors_shape_grows_with_the_header_only(tmp_path: Path) -> None:
    from penstock.save.check.foreign import Damage, Scope, check_safetensors

    taken = []
    for n in (2_000, 40_000):
        facts = {"dtype": "F32", "shape": [9999999999999999999] * n, "data_offsets": [0, 4]}
        header = json.dumps({"w": facts}).encode()
        (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        with open(tmp_path / "w", "rb") as file, pytest.raises(Damage, match="do not fit"):
            check_safetensors(file, "w", (tmp_path / "w").stat().st_size, Scope("all"))
        taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)
    assert taken[1] < 1.0  # quadratic, it took 4 s


def test_records_of_an_archive_that_overlap_are_damage(tmp_path: Path) -> None:
    from penstock.save.check.foreign import Damage, Scope, check_zip

    with zipfile.ZipFile(tmp_path / "z", "w") as made:
        for number in range(20):
            made.writestr(f"data/{number}", os.urandom(2000))
        for info in made.infolist()[1:]:
            info.header_offset = 0  # all are the first one's bytes
    with open(tmp_path / "z", "rb") as file:
        assert len(zipfile.ZipFile(file).infolist()) == 20
    data = bytearray((tmp_path / "z").read_bytes())
    start = data.rfind(b"PK\x05\x06")
    directory = struct.unpack_from("<I", data, start + 16)[0]
    small = data[:2100] + data[directory:start]
    end = bytearray(data[start:])
    struct.pack_into("<I", end, 16, 2100)
    (tmp_path / "z").write_bytes(small + end)
    with open(tmp_path / "z", "rb") as file, pytest.raises(Damage, match="overlap"):
        check_zip(file, "z", Scope("all"))


def test_a_list_of_patterns_has_a_limit(intact: Path, tmp_path: Path) -> None:
    for patterns in ('"^/a/b",' * 100_000, f'"{"a" * 100_000}"'):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(intact, run)
        (run / "classes.toml").write_text(f"data = [{patterns}]\n")
        status, words, _ = asked([PENSTOCK, "sql", "run", "select 1"], tmp_path)
        assert status == 2
        assert "more than 500 patterns of 2,000 letters" in words
