"""Rounds of soak_units.py under `penstock run --burst-buffer`; and the program of such a round.

The recorder is in the program from the program's start, so that no process can fork the program:
each start imports the framework.  The fast tier is in memory, and the program's folder is on disk.
Knows rounds and the burst buffer; `recover` is the command.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bars import PENSTOCK
from soak_children import (
    GAP_IN_PLACE_S,
    SavingProgram,
    Wrong,
    answered,
    die_with_parent,
    saving,
)
from soak_layouts import LAYOUTS, ready

from penstock.places.stores import open_store
from penstock.save.burst.file import entries
from penstock.save.find.formats import find
from penstock.save.unit.order import newest_first
from penstock.save.verify import verify

if TYPE_CHECKING:
    from soak_units import Round

__all__ = ["WITHOUT", "memory_tier", "under_burst"]

# Orbax: no name is one of the burst buffer's.  Loss of the tier leaves a mixture of the SavedModel,
# as some files under the same names go to the program's path: nothing may be named then.
WITHOUT = ("Orbax",)
MIXED = ("SavedModel, same name",)
MOST_START_S, MOST_END_S = 1500.0, 300.0  # on a machine with other load
GAPS_S = (0.2, 1.0, 2.5)
MOST_LOADED = 4
PROGRAM = "soak_bursts.py"


@contextmanager
def memory_tier(round_: Round) -> Iterator[None]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="soak-") as fast:
        round_.fast = Path(fast)
        yield


def under_burst(doomed: str) -> Callable[[Round], None]:
    """doomed: what is killed: "program", "drain", "all"; "lost": all, and the tier is lost."""

    def whole(round_: Round) -> None:
        round_.saves(1, tier=round_.slow)  # an earlier save, without a burst buffer
        round_.facts["save_s"] = round_.words()[-1][3] - round_.words()[-2][3]
        run = _started(round_, 12, round_.chance.choice(GAPS_S))
        try:
            _strike(round_, run, doomed)
        finally:
            round_.stop.touch()
            for pid in (run.pid, *_parts(run.pid).values()):
                _kill(pid)
            run.wait()
        least = _least(round_, doomed)
        said = _judged(round_, least)
        round_.facts["found"] = said["found"]
        _again(round_, said)

    return whole


def _started(round_: Round, n_saves: int, gap_s: float) -> subprocess.Popen[bytes]:
    round_.stop.unlink(missing_ok=True)
    job_file = round_.folder / "job.json"
    job = {
        "layout": round_.layout.name, "tier": os.fspath(round_.slow),
        "said": os.fspath(round_.said), "begin": (round_.step + 1, round_.number + 1),
        "seed": round_.chance.randrange(1 << 30), "n_saves": n_saves, "gap_s": gap_s,
        "stop": os.fspath(round_.stop),
    }  # fmt: skip
    job_file.write_text(json.dumps(job))
    words = [
        "run",
        "-q",
        "-o",
        round_.folder / f"run-{round_.number}",
        "--burst-buffer",
        round_.fast,
    ]
    program = [sys.executable, Path(__file__).with_name(PROGRAM), job_file]
    with round_.log.open("ab") as log:
        return subprocess.Popen(
            [PENSTOCK, *words, "--", *program], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=os.environ | {"TMPDIR": "/dev/shm"},  # Lightning moves its file from there
            preexec_fn=die_with_parent,
        )  # fmt: skip


def _strike(round_: Round, run: subprocess.Popen[bytes], doomed: str) -> None:
    begun = len(round_.words())
    # The drain knows the names of a save from earlier saves.
    wanted = 3 if round_.layout.is_in_place else round_.chance.choice((1, 2, 3))
    until_s = time.monotonic() + MOST_START_S
    while sum(word == "ended" for word, _, _, _ in round_.words()[begun:]) < wanted:
        if run.poll() is not None or time.monotonic() > until_s:
            raise Wrong(f"the program saved too little: {round_.log.read_text()[-1500:]}")
        time.sleep(0.1)
    if round_.chance.random() < 0.7:
        round_.wait_in_save()
    else:
        time.sleep(round_.chance.random() * 3)
    parts = _parts(run.pid)
    if not {"program", "drain"} <= parts.keys():
        raise Wrong(f"no program or no drain: {parts}")
    if doomed in ("program", "drain"):
        _kill(parts[doomed])
        time.sleep(round_.chance.random())
        round_.stop.touch()
        try:
            round_.facts["status"] = run.wait(MOST_END_S)
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"`penstock run` does not end: {round_.log.read_text()[-800:]}") from error
        return
    pids = [run.pid, *parts.values()]
    round_.chance.shuffle(pids)
    for pid in pids:
        _kill(pid)
        time.sleep(round_.chance.random() * 0.05)


def _kill(pid: int) -> None:
    """SIGKILL for a process and its children, and wait for the end of all but our own child."""
    pids = [pid, *_children(pid)] if pid else []
    for doomed_pid in pids:
        with suppress(ProcessLookupError):
            os.kill(doomed_pid, signal.SIGKILL)
    for doomed_pid in pids:
        while _is_alive(doomed_pid):
            time.sleep(0.005)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for child in children.split()]


def _parts(pid: int) -> dict[str, int]:
    """Return the program and the drain started by `penstock run`."""
    parts = {}
    for child in _children(pid):
        with suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(PROGRAM.encode()) for word in words):
                parts["program"] = child
            elif b"drain" in words:
                parts["drain"] = child
    return parts


def _least(round_: Round, doomed: str) -> int:
    """Return the number of the newest save that must not be lost; 0: of none."""
    newest = round_.hear()
    words = round_.words()
    round_.facts |= {"ended": newest, "is_in_save": words[-1][0] == "began"}
    if doomed != "lost":
        return max(newest, 0 if round_.layout.name in MIXED else 1)
    shutil.rmtree(round_.fast)
    round_.fast.mkdir()
    paths = round_.layout.paths(round_.slow)[-2 * MOST_LOADED :]
    round_.facts["on_slow"] = home = max(round_.look(paths).values(), default=0)
    return 0 if round_.layout.is_in_place and round_.layout.name in MIXED else max(home, 1)


def _judged(round_: Round, least: int) -> dict[str, Any]:
    """Recover by the command, and load the named checkpoint and all checkpoints called whole."""
    words = [PENSTOCK, "save", "recover", round_.fast, round_.slow, "--full", "--json"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        said: dict[str, Any] = json.loads(ended.stdout)
    except ValueError as error:
        raise Wrong(f"recover: status {ended.returncode}: {ended.stderr[-1500:]}") from error
    whole = answered(lambda: _whole(round_.slow), round_.folder, "whole")
    paths = [path for path in dict.fromkeys([said["path"], *whole]) if path]
    loaded = round_.look([Path(path) for path in paths])
    said["found"] = named_number = loaded.get(said["path"], 0)
    evidence = (
        f"recover: status {ended.returncode}, named {said['path']}, {named_number}: {loaded}; "
    )
    evidence += f"{said['passed_over']}; {said['not_drained']}; {ended.stderr[-600:]}"
    if not said["path"] and least:
        raise Wrong(f"{least} is whole somewhere, and nothing is named: {evidence}")
    if said["path"] and not named_number:
        raise Wrong(f"what is named does not load as one save: {evidence}")
    if named_number < least:
        raise Wrong(f"{least} was whole, and an older one is named: {evidence}")
    if false := [path for path in whole if not loaded[path]]:
        raise Wrong(f"called whole, and does not load as one save: {false}; {evidence}")
    links = [path for path in round_.slow.rglob("*") if path.is_symlink()]
    left = entries(round_.fast) if (round_.fast / "burst").is_dir() else []  # a lost tier is empty
    if links or left:
        raise Wrong(f"not home: {links or left}; {evidence}")
    return said


def _whole(slow: Path) -> list[str]:
    newest = newest_first(find(open_store(slow)))[:MOST_LOADED]
    return [
        checkpoint.where
        for checkpoint in newest
        if not checkpoint.problem and verify(checkpoint, "full").is_whole
    ]


def _again(round_: Round, said: dict[str, Any]) -> None:
    """Save once more from there, as the next job would: the new save is then the newest."""
    if round_.layout.is_in_place:
        time.sleep(GAP_IN_PLACE_S)
    round_.step = said["step"] if said["step"] is not None else round_.step
    if round_.chance.random() < 0.25:
        run = _started(round_, 1, 0.0)
        try:
            status = run.wait(MOST_START_S)
        except subprocess.TimeoutExpired as error:
            _kill(run.pid)
            raise Wrong(f"`penstock run` does not end: {round_.log.read_text()[-800:]}") from error
        if status:
            raise Wrong(f"`penstock run`: status {status}: {round_.log.read_text()[-1500:]}")
    else:
        round_.saves(1, tier=round_.slow)
    round_.hear()
    _judged(round_, round_.number)


def _program(job_file: Path) -> None:
    job = json.loads(job_file.read_text())
    layout = LAYOUTS[job.pop("layout")]
    if why := ready(layout.family, [layout]):
        raise SystemExit(why)
    paths = {name: Path(job.pop(name)) for name in ("tier", "said", "stop")}
    saving(SavingProgram(layout=layout, **job | paths))


if __name__ == "__main__":
    _program(Path(sys.argv[1]))
