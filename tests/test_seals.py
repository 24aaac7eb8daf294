"""A real run's files, each with one bit flipped at many places: an error in words or the numbers of
the sound run, never other numbers."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK, times
from penstock.errors import LogError, PenstockError, TierError
from penstock.explain.measures import measure
from penstock.explain.report import report_of, to_json
from penstock.log import seals
from penstock.log.events import read_log
from penstock.log.header import read_header
from penstock.log.layout import HEADER
from penstock.log.texts import CLOSED_BLOCK, HEADER_BYTES, UNIT_BYTES, is_log_name, logs_in
from penstock.places.tiers import Ceiling
from penstock.recording import launch
from penstock.runs.gather import gather
from penstock.runs.run import Run, open_run
from penstock.safe import checksums
from penstock.stage.fill import Journal
from penstock.stage.planfile import load
from penstock.trial import ceiling

# Steps, a thread alive at the end, a killed child, a child that ends by os._exit, and enough calls
# for a budget of 1 MB to fold most of them.
PROGRAM = """
import os, signal, threading, time
import penstock

def reads(n):
    with open(__file__, 'rb', buffering=0) as file:
        for _ in range(n):
            file.read(1)

ready = threading.Event()
def idle():
    reads(50); ready.set(); time.sleep(1000)
threading.Thread(target=idle, daemon=True).start()
ready.wait()
for how in ('kill', 'exit'):
    pid = os.fork()
    if not pid:
        reads(100)
        os._exit(0) if how == 'exit' else os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
for _ in range(10):
    with penstock.step():
        reads(6000)
"""


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    (folder / "program.py").write_text(PROGRAM)
    command = [PENSTOCK, "run", "-q", "--budget", "1MB", "-o", "run"]
    ran = subprocess.run([*command, sys.executable, "program.py"], cwd=folder, timeout=240)
    assert ran.returncode == 0
    run = folder / "run"
    measured = Ceiling(
        path="/data", mount="/", kind="ext4", op="read", order="random", request_bytes=4096,
        threads=1, bandwidth_bps=1e9, calls_hz=1e3, is_cold=True, why_not_cold="", seconds=1.0,
        unix_ns=1,
    )  # fmt: skip
    ceiling.store(run, [measured])
    start_ns = json.loads((run / "run.json").read_text())["start_unix_ns"]
    Journal(run / "fill.json", "fast", 1e9, [(start_ns, start_ns + 10**8, 1 << 20, True)]).end()
    return run


def test_places_in_the_header_are_those_of_the_format() -> None:
    at = {name: HEADER.fields[name][1] for name in HEADER.names or ()}
    told = (seals.PID, seals.UNITS, seals.START_NS, seals.LOST, seals.BOOT_ID.start)
    assert told == (at["pid"], at["units"], at["start_ns"], at["lost"], at["boot_id"])


def test_all_logs_of_a_run_are_sealed_also_of_killed_processes(real_run: Path) -> None:
    logs = logs_in(real_run)
    assert len(logs) == 3
    states = set()
    for path in logs:
        states.add(read_header(path).state)
        data = path.read_bytes()
        with seals.LogFile(str(path)) as file:
            sealed = seals.sealed_page(file, data[:4096])[1]
        assert sealed.units is not None
        log = read_log(path)
        assert (log.is_torn, log.damaged_units) == (False, 0)
        kinds = {int(row["unit"]): data[HEADER_BYTES + row["unit"] * UNIT_BYTES + 4]
                 for row in log.blocks}  # fmt: skip
        assert {unit for unit, kind in kinds.items() if kind != CLOSED_BLOCK} == set(sealed.sums)
    assert states == {"running", "exited"}


def test_a_process_closes_the_block_of_the_thread_that_ends_it(tmp_path: Path) -> None:
    """Without `penstock run`, which would seal the log."""
    program = f"""if True:
        import os, sys, threading, penstock
        with penstock.record({str(tmp_path / "run")!r}):
            pass
        penstock.record({str(tmp_path / "run")!r}).__enter__()
        open('/etc/hostname').read()
        os._exit(0) if sys.argv[1] == '_exit' else sys.exit()"""
    for how in ("exit", "_exit"):
        subprocess.run([sys.executable, "-c", program, how], check=True, timeout=60)
        (path,) = logs_in(tmp_path / "run")
        log = read_log(path)
        (unit,) = log.event_blocks["unit"]
        assert path.read_bytes()[HEADER_BYTES + unit * UNIT_BYTES + 4] == CLOSED_BLOCK
        assert sum(len(events) for events in log.events()) > 3
        shutil.rmtree(tmp_path / "run")


def digest(path: Path) -> str:
    """Everything that a log tells."""
    log = read_log(path)
    found = hashlib.sha256(repr((log.header, log.threads, list(log.texts()))).encode())
    for events in log.events():
        for name in type(events).__slots__:
            found.update(getattr(events, name).tobytes())
    for counters in log.counters():
        found.update(counters.tobytes())
    return found.hexdigest() + "damaged" * bool(log.damaged_units or log.is_torn)


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_a_flipped_bit_of_a_log_is_found_wherever_it_is(real_run: Path, tmp_path: Path) -> None:
    chance = random.Random(25)
    outcomes = set()
    for log in logs_in(real_run):
        data, sound = log.read_bytes(), digest(log)
        path = tmp_path / log.name
        units = [HEADER_BYTES + int(row["unit"]) * UNIT_BYTES for row in read_log(log).blocks]
        places = [chance.randrange(3672) for _ in range(times(150))]  # the header
        places += [4096 + chance.randrange(60) for _ in range(times(40))]  # the seal
        places += [chance.choice(units) + chance.randrange(64) for _ in range(times(60))]
        places += [chance.choice(units) + chance.randrange(64, 2000) for _ in range(times(60))]
        places += [chance.choice(units) + chance.randrange(UNIT_BYTES) for _ in range(times(30))]
        for place in places:
            path.write_bytes(flipped(data, place, chance.randrange(8)))
            try:
                found = digest(path)
            except LogError as error:
                assert log.name in str(error)  # noqa: PT017
                outcomes.add("refused")
                continue
            assert found == sound or found.endswith("damaged"), (log.name, place)
            outcomes.add("sound" if found == sound else "damaged")
        path.write_bytes(data)
        assert digest(path) == sound
    assert outcomes == {"refused", "sound", "damaged"}


def test_a_unit_that_was_emptied_counts_as_damaged(real_run: Path, tmp_path: Path) -> None:
    log = logs_in(real_run)[0]
    path = tmp_path / log.name
    data = bytearray(log.read_bytes())
    unit = HEADER_BYTES + int(read_log(log).blocks["unit"][0]) * UNIT_BYTES
    data[unit : unit + UNIT_BYTES] = bytes(UNIT_BYTES)  # as after a lost write
    path.write_bytes(data)
    assert read_log(path).damaged_units == 1


class Reports:
    """Reports of damaged copies of a run.  A report reads the tables and nothing else: tables with
    the bytes of earlier ones have their report, which is not made again."""

    def __init__(self) -> None:
        self._by_tables: dict[object, tuple[str, str]] = {}

    def of(self, folder: Path) -> tuple[str, str]:
        """The report of a folder, or an error; and what of the report says that a file is
        damaged."""
        try:
            with open_run(folder) as run:
                paths = sorted(run.tables.rglob("*.parquet"))
                tables = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()
                beside = [str(run.sql(f"FROM {name}")) for name in ("ceilings", "fills")]
                key = (tables, run.start_unix_ns, *beside, run.classes)
                if key not in self._by_tables:
                    self._by_tables[key] = self._made(run)
                return self._by_tables[key]
        except PenstockError as error:
            return "", str(error)

    def _made(self, run: Run) -> tuple[str, str]:
        report = report_of(measure(run))
        told = [gap.why for gap in report.gaps if "damaged" in f"{gap.what} {gap.why}"]
        # Two cores may add in another order: the last digits are no other number.
        text = re.sub(
            r"-?\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.9g}", to_json(report)
        )
        return text, "; ".join(told)


@pytest.mark.slow
def test_a_flipped_bit_of_any_file_of_a_run_is_told_or_changes_nothing(
    real_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(real_run, folder)
    shutil.rmtree(folder / "tables", ignore_errors=True)
    reports = Reports()
    sound, told = reports.of(folder)
    assert not told
    shutil.copytree(folder / "tables", tmp_path / "tables")
    chance = random.Random(5)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    assert {"run.json", "ceilings.json", "fill.json", "control"} <= {*names}
    n_told = 0
    for name in names:
        data = (folder / name).read_bytes()
        for _ in range(times(12 if not is_log_name(name) else 6) if data else 0):
            shutil.rmtree(folder / "tables", ignore_errors=True)
            place = chance.randrange(min(len(data), 8192 if is_log_name(name) else 1 << 30))
            (folder / name).write_bytes(flipped(data, place, chance.randrange(8)))
            report, told = reports.of(folder)
            assert told or report == sound, (name, place)
            n_told += bool(told)
        (folder / name).write_bytes(data)
    assert n_told > times(30)
    for path in sorted((tmp_path / "tables").rglob("*.*")):
        data = path.read_bytes()
        for _ in range(times(3)):
            shutil.rmtree(folder / "tables", ignore_errors=True)
            shutil.copytree(tmp_path / "tables", folder / "tables")
            damaged = flipped(data, chance.randrange(len(data)), chance.randrange(8))
            (folder / "tables" / path.relative_to(tmp_path / "tables")).write_bytes(damaged)
            report, told = reports.of(folder)
            assert told or report == sound, path


def every_flip(path: Path, read: Callable[[], object], n: int = 400) -> None:
    """Each flipped bit is refused, or changes nothing that is read."""
    data, sound = path.read_bytes(), read()
    chance = random.Random(1)
    for _ in range(n):
        path.write_bytes(flipped(data, chance.randrange(len(data)), chance.randrange(8)))
        try:
            found = read()
        except PenstockError as error:
            assert path.name in str(error)  # noqa: PT017
            continue
        assert found == sound
    path.write_bytes(data)


def test_flipped_bits_of_a_plan_and_of_a_tiers_manifest(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    lines: list[dict[str, Any]] = [{"penstock_plan": 1}]
    lines += [{"path": f"/data/{n}.jpg", "gain_s": n / 7} for n in range(20)]
    rows = (checksums.line(json.dumps(line).encode()) + b"\n" for line in lines)
    path.write_bytes(b"".join(rows))
    every_flip(path, lambda: load(path))
    assert len(load(path)) == 20
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert len(load(path)) == 20  # of an earlier release


def test_gathering_names_a_damaged_run_json(real_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    shutil.copytree(real_run, folder)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"penstock"', '"penstocj"', 1))
    found = gather([folder], tmp_path / "all")
    assert [name for name in found.left_out if name.endswith("run.json")]
    whole = gather([real_run], tmp_path / "whole")
    assert not whole.left_out
    assert "start_unix_ns" in launch._facts_in(tmp_path / "whole" / "run.json")


def test_a_text_with_a_mark_of_its_own_is_sealed(tmp_path: Path) -> None:
    """A hostile file name must not make a file look damaged."""
    text = checksums.sealed_json({"name": checksums.MARK, "sum": "x"})
    checksums.check_text(text.encode())
    assert json.loads(text)["name"] == checksums.MARK


def test_a_log_whose_process_runs_is_not_sealed(tmp_path: Path) -> None:
    program = f"""if True:
        import sys, penstock
        penstock.record({str(tmp_path / "run")!r}).__enter__()
        open('/etc/hostname').read()
        print(flush=True)
        sys.stdin.read()"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seals.seal_ended(tmp_path / "run")
        (path,) = logs_in(tmp_path / "run")
        assert path.read_bytes()[4096:4104] == bytes(8)
        os.kill(process.pid, signal.SIGKILL)
    seals.seal_ended(tmp_path / "run")
    assert path.read_bytes()[4096:4103] == b"PENSEAL"
    linked = tmp_path / "linked.events"
    linked.symlink_to(path)
    before = path.read_bytes()
    seals.seal_ended(tmp_path)
    assert path.read_bytes() == before


def test_a_damaged_line_of_a_tiers_manifest_is_no_copy() -> None:
    from penstock.places.registry import Tier
    from penstock.stage.manifest import Identity, StagedCopy, TierPlace

    place = TierPlace(Tier("fast", Path("/fast")))
    entry = StagedCopy("/data/a", "data/a", Identity(1, 2, 3, 4, 5), "xxh3_64:1")
    line = entry.line()
    chance = random.Random(3)
    for _ in range(500):
        at = chance.randrange(len(line) - 1)
        try:
            told = place.line_content(flipped(line, at, chance.randrange(8)))
        except TierError:
            continue
        assert told in (None, entry)
    assert place.line_content(line) == entry
