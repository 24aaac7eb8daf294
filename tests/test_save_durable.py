"""Test the order in which a drain makes a copy durable, by its system calls: a power cut between
any two calls leaves no manifest of files that are not there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.checkpoint import BESIDE, HALF, INSIDE
from penstock.save.copy.target import PLACE
from penstock.save.find.formats import find

CALLS = "trace=fsync,syncfs,rename,renameat,renameat2,unlink,pwrite64"
NAMES = (
    *("step_1/model.bin", "step_1/sub/optim.bin", "model-2.bin", "optim-2.bin", "last.bin"),
    *(f"step_3/model{number}.bin" for number in range(20)),
)  # fmt: skip
PROGRAM = """
import sys
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
with Drainer(sys.argv[1], sys.argv[2], DrainSettings(settle_s=0)) as working:
    assert working.once() == []
"""


class Trace:
    """The calls of a drain with paths below the slow tier, in their order."""

    def __init__(self, text: str, slow: Path) -> None:
        self._slow = slow
        self.calls = [
            line.split(maxsplit=1)[1].replace(f"{slow}/", "").replace(str(slow), ".")
            for line in text.splitlines()
            if str(slow) in line and " = -1 " not in line
        ]

    def places(self, call: str, *texts: str) -> list[int]:
        return [
            place
            for place, line in enumerate(self.calls)
            if line.startswith(f"{call}(") and all(text in line for text in texts)
        ]

    def first(self, call: str, *texts: str) -> int:
        return min(self.places(call, *texts))

    def last(self, call: str, *texts: str) -> int:
        return max(self.places(call, *texts))

    def next(self, after: int, call: str, *texts: str) -> int:
        return min(place for place in self.places(call, *texts) if place > after)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A drain of two folders, of two files of a step, and of one file."""
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace is missing or may not trace here: make setup-system")
    folder = tmp_path_factory.mktemp("durable")
    fast, slow = folder / "fast", folder / "slow"
    for name in NAMES:
        (fast / name).parent.mkdir(parents=True, exist_ok=True)
        (fast / name).write_bytes(name.encode())
    command = ["strace", "-f", "-y", "-o", folder / "trace", "-e", CALLS]
    subprocess.run([*command, sys.executable, "-c", PROGRAM, fast, slow], check=True)
    assert sum(len(one.files) for one in find(LocalStore(slow))) == len(NAMES)
    return Trace((folder / "trace").read_text(), slow)


def _in_order(places: Sequence[int]) -> bool:
    return list(places) == sorted(places)


def test_a_folder_is_renamed_after_its_files_its_manifest_and_its_folders(trace: Trace) -> None:
    part = "step_1.part"
    manifest = trace.first("rename", f'"{part}/{INSIDE}"')
    written = [trace.first("fsync", f"{part}/{name}") for name in (".model.bin", "sub/.optim.bin")]
    named = [trace.first("rename", f'"{part}/{name}"') for name in ("model.bin", "sub/optim.bin")]
    assert max(written) < max(named) < trace.first("pwrite64", f"{part}/.{INSIDE}")
    rename = trace.first("rename", f'rename("{part}", "step_1")')
    last_change = trace.last("unlink", f'"{part}/')
    folders = [trace.next(last_change, "fsync", f"<{one}>") for one in (part, f"{part}/sub")]
    synced = trace.first("fsync", f"{part}/.{INSIDE}")
    assert _in_order([synced, manifest, last_change, min(folders), max(folders), rename])
    assert trace.next(rename, "fsync", "<.>") == rename + 1


def test_many_files_of_a_folder_are_synced_before_the_first_has_its_name(trace: Trace) -> None:
    part = "step_3.part"
    names = trace.places("renameat", f'<{part}>, ".model', ".bin.penstock-part")
    syncs = trace.places("syncfs", f"<{part}>") or trace.places("fsync", f"{part}/.", ".bin")
    assert len(names) == 20
    before = [place for place in syncs if place < min(names)]
    assert len(before) in (1, 20)
    assert max(names) < trace.first("pwrite64", f"{part}/.{INSIDE}")


def test_the_manifest_beside_several_files_comes_after_each_is_in_its_place(trace: Trace) -> None:
    part = "model-2.bin.part"
    journal = trace.first("rename", f'"{part}/{PLACE}"')
    drafts = [trace.first("fsync", f"{part}/.{name}") for name in ("model-2.bin", "optim-2.bin")]
    moves = [
        trace.first("rename", f'rename("{part}/{name}", "{name}")')
        for name in ("model-2.bin", "optim-2.bin")
    ]
    synced = trace.next(max(moves), "fsync", "<.>")
    manifest = trace.first("pwrite64", f".model-2.bin{BESIDE}")
    named = trace.first("rename", f'"model-2.bin{BESIDE}"')
    assert max(drafts) < journal
    assert trace.next(journal, "fsync", f"<{part}>") < min(moves)
    assert _in_order([max(moves), synced, manifest, named])
    assert named < min(trace.places("unlink", f'"{part}/') or [len(trace.calls)])


def test_the_manifest_beside_a_file_comes_after_the_file_and_before_the_mark_goes(
    trace: Trace,
) -> None:
    mark = trace.first("rename", f'"last.bin{HALF}"')
    file = trace.first("rename", '".last.bin.penstock-part"')
    manifest = trace.first("rename", f'"last.bin{BESIDE}"')
    gone = trace.first("unlink", f'"last.bin{HALF}"')
    order = [mark, trace.first("fsync", ".last.bin.penstock-part"), file]
    order += [trace.next(file, "fsync", "<.>"), trace.first("pwrite64", f".last.bin{BESIDE}")]
    assert _in_order([*order, manifest, trace.next(manifest, "fsync", "<.>"), gone])
