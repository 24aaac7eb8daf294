"""Many ranks, one checkpoint: it counts when all parts are there, or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.errors import SaveError
from penstock.places.stores import LocalStore
from penstock.save.find.formats import find
from penstock.save.verify import verify

# A rank as a program: texts are gathered through files, as no framework is needed to try it.
RANK = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from penstock.errors import SaveError
from penstock.save.training.checkpointer import Checkpointer
from penstock.save.training.ranks import World

rank, size, fast, meeting, what = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
turn = 0

def gather(text):
    global turn
    turn += 1
    here = Path(meeting) / f"{turn}.{rank}.new"
    here.write_text(text)
    here.rename(Path(meeting) / f"{turn}.{rank}.txt")
    found = [Path(meeting) / f"{turn}.{other}.txt" for other in range(size)]
    while not all(path.exists() for path in found):
        time.sleep(0.005)
    return [path.read_text() for path in found]

def say(*words):
    print(*words, flush=True)

def state(step):
    return {"w": np.full(200_000, 100.0 * step + rank), "step": step}

ckpt = Checkpointer(fast, world=World(rank, size, gather), rank_timeout_s=200)
exec(what)
ckpt.close()
"""


def ranks(tmp_path: Path, what: str, size: int = 4) -> list[tuple[int, str]]:
    """Runs `what` in each rank; status and words of each."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    meeting = tmp_path / f"meeting-{len(list(tmp_path.glob('meeting-*')))}"
    meeting.mkdir()
    running = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(size), tmp_path / "fast", meeting, what],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    except subprocess.TimeoutExpired:
        for process in running:
            process.kill()
        words = [process.communicate()[0] for process in running]
        raise AssertionError(f"ranks hang: {words}") from None
    return [(process.returncode, text) for process, text in zip(running, said, strict=True)]


def values(folder: Path) -> set[float]:
    """The first number of each rank's array, read without any of our code for loading."""
    numpy = pytest.importorskip("safetensors.numpy", reason="the judge is safetensors itself")
    return {float(numpy.load_file(path)["w"][0]) for path in folder.glob("*.safetensors")}


def test_a_checkpoint_of_four_ranks_holds_four_parts_and_each_gets_its_own(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        """
for step in (1, 2):
    handle = ckpt.save(step, state(step))
say(Path(handle.local.result(200)).name)
mine = {"w": np.zeros(200_000), "step": 0}
say(ckpt.restore(mine), mine["w"][0] == 200 + rank, mine["step"])
""",
    )
    assert [status for status, _ in said] == [0] * 4, said
    assert all(text.splitlines() == ["step-00000002", "2 True 2"] for _, text in said), said
    for step in (1, 2):
        folder = tmp_path / "fast" / f"step-{step:08d}"
        assert values(folder) == {100.0 * step + rank for rank in range(4)}
        assert json.loads((folder / "penstock-manifest.json").read_text())["world_size"] == 4
    assert all(verify(one, "full").is_whole for one in find(LocalStore(tmp_path / "fast")))


def test_a_dead_rank_ends_that_checkpoint_only(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        """
ckpt.save(1, state(1)).local.result(200)
if rank == 2:
    os.kill(ckpt._writer.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    ckpt.save(2, state(2)).local.result(200)
except SaveError as error:
    say(error)
say(time.monotonic() - begin < 100)  # half of what a rank that says nothing is given
""",
    )
    assert [status for status, _ in said] == [0, 0, -signal.SIGKILL, 0], said
    assert "rank 2 has ended" in said[0][1]
    assert all("step 2 was given up" in said[rank][1] for rank in (0, 1, 3))
    assert all("True" in said[rank][1] for rank in (0, 1, 3))
    left = {path.name for path in (tmp_path / "fast").iterdir()}
    assert left == {".penstock", "step-00000001"}


def test_a_rank_that_cannot_write_is_named_to_all(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        """
handle = ckpt.save(1, {"w": np.zeros(10)})
handle.local.result(200)
if rank == 1:
    import penstock.save.training.checkpointer as module
    name = module.loading.file_of_rank
    module.loading.file_of_rank = lambda *args: "no/such/folder/" + name(*args)
try:
    ckpt.save(2, {"w": np.zeros(10)}).local.result(200)
except SaveError as error:
    say(error)
""",
        size=2,
    )
    assert "rank 1: " in said[0][1]
    assert "No such file" in said[1][1]
    assert not (tmp_path / "fast" / "step-00000002").exists()


@pytest.mark.parametrize("late", [0, 1, 3])
def test_ranks_killed_in_a_save_never_leave_a_mixture(tmp_path: Path, late: int) -> None:
    """As DCP does when it saves over an existing folder: half of step 2, half of step 1."""
    said = ranks(
        tmp_path,
        f"""
ckpt.save(1, state(1)).local.result(200)
gather("")
if rank != {late}:
    ckpt.save(2, state(2))
    time.sleep(0.3)
os.kill(ckpt._writer.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    assert [status for status, _ in said] == [-signal.SIGKILL] * 4, said
    again = ranks(
        tmp_path,
        """
mine = {"w": np.zeros(200_000), "step": 0}
say(ckpt.restore(mine), mine["w"][0] - rank, mine["step"])
""",
    )
    assert [text.split() for _, text in again] == [["1", "100.0", "1"]] * 4
    assert not list((tmp_path / "fast").glob("*.part"))


def test_one_rank_saves_for_all(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        """
ckpt.save(1, state(1) if rank == 0 else None).local.result(200)
mine = {"w": np.zeros(200_000), "step": 0}
say(ckpt.restore(mine), mine["w"][0])
""",
        size=3,
    )
    assert [text.split() for _, text in said] == [["1", "100.0"]] * 3


def test_other_numbers_of_ranks_are_refused_with_the_way_out(tmp_path: Path) -> None:
    ranks(tmp_path, "ckpt.save(1, state(1)).local.result(200)", size=3)
    said = ranks(
        tmp_path,
        """
try:
    ckpt.restore({"w": np.zeros(200_000), "step": 0}, default=0)
except SaveError as error:
    say(error)
""",
        size=2,
    )
    assert all("states of 3 ranks" in text for _, text in said), said


TORCH = """
import sys
import torch
import torch.distributed as dist
from penstock.save.training.checkpointer import Checkpointer

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
with Checkpointer(sys.argv[1]) as ckpt:
    mine = torch.randn(1000)
    for step in (10, 20):
        path = ckpt.save(step, {"w": mine * step}).local.result(240)
    back = {"w": torch.zeros(1000)}
    assert ckpt.restore(back) == 20
    assert torch.equal(back["w"], mine * 20)
print("rank", rank, "has", path, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_with_four_ranks_over_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torchrun is torch's")
    program = tmp_path / "job.py"
    program.write_text(TORCH)
    finished = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4",
         program, tmp_path / "fast"],
        capture_output=True, text=True, timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.count("step-00000020") == 4
    assert len(list((tmp_path / "fast" / "step-00000020").glob("state-*.pt"))) == 4


MPI = """
import os, signal, sys
import numpy as np
from mpi4py import MPI
from penstock.errors import SaveError
from penstock.save.training.checkpointer import Checkpointer

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
with Checkpointer(sys.argv[1], sys.argv[2]) as ckpt:
    step = ckpt.restore(found := {"w": None}, default=0)
    if step:
        assert found["w"].tolist() == [10.0 * step + rank] * 1000, found
    for step in (step + 1, step + 2):
        handle = ckpt.save(step, {"w": np.full(1000, 10.0 * step + rank)})
        path = handle.local.result(200)
    os.write(1, f"rank {rank} of {size} saved {path.rpartition('/')[2]};".encode())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="mpi4py or mpirun is not installed",
)
def test_mpirun_with_three_ranks_that_go_on_in_a_second_job(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(MPI)
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "3"]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    for newest in (2, 4):
        finished = subprocess.run(
            [*command, sys.executable, program, tmp_path / "fast", tmp_path / "slow"],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr[-3000:]
        for rank in range(3):
            assert f"rank {rank} of 3 saved step-{newest:08d};" in finished.stdout
    for tier in ("fast", "slow"):
        [one] = [one for one in find(LocalStore(tmp_path / tier)) if one.step == 4]
        assert one.manifest is not None
        assert one.manifest.world_size == 3
        assert verify(one, "full").is_whole


def test_skipping_is_refused_for_many_ranks(tmp_path: Path) -> None:
    from penstock.save.training.checkpointer import Checkpointer
    from penstock.save.training.ranks import World

    with pytest.raises(SaveError, match="would not agree"):
        Checkpointer(tmp_path, world=World(0, 2, lambda text: [text, text]), on_full="skip")


@pytest.mark.parametrize("who", [0, 1])
def test_what_one_rank_refuses_keeps_no_other_waiting(tmp_path: Path, who: int) -> None:
    said = ranks(
        tmp_path,
        f"""
def saved(step, **more):
    begin = time.monotonic()
    try:
        ckpt.save(step, state(step) | (more if rank == {who} else {{}})).local.result(200)
    except (SaveError, RuntimeError) as error:
        say(step, error)
    assert time.monotonic() - begin < 60  # a rank that says nothing is given 200

class Broken:
    def state_dict(self):
        raise RuntimeError("no state today")

saved(1, a=object())
saved(2)  # of an earlier save's failure only some ranks know
saved(3, a=Broken())
saved(4)
saved(5)
saved(5)
""",
        size=2,
    )
    assert [status for status, _ in said] == [0, 0], said
    other = 1 - who
    assert "1 state['a']" in said[who][1]
    assert "3 no state today" in said[who][1]
    assert f"1 step 1 was given up: rank {who}: state['a']" in said[other][1]
    assert f"3 step 3 was given up: rank {who}: no state today" in said[other][1]
    left = {path.name for path in (tmp_path / "fast").iterdir()}
    steps = ("step-00000002", "step-00000004", "step-00000005", "step-00000005.2")
    assert left == {".penstock", *steps}


def test_what_one_rank_meets_in_the_background_is_heard_by_all(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        """
def saved(step):
    begin = time.monotonic()
    try:
        ckpt.save(step, {"w": np.zeros(10)}).local.result(200)
    except SaveError as error:
        say(step, error)
    assert time.monotonic() - begin < 60  # a rank that says nothing is given 200

saved(1)
if rank == 1:  # it meets what nobody foresaw
    ckpt._snapshot.pickled = lambda taken: 1 / 0
saved(2)
if rank == 1:
    del ckpt._snapshot.pickled
saved(3)
if rank == 0:
    from penstock.save.commit import begin
    held = begin(fast, 4)
saved(4)
""",
        size=2,
    )
    assert [status for status, _ in said] == [0, 0], said
    assert "2 step 2 was given up: rank 1: step 2 was not saved: ZeroDivision" in said[0][1]
    assert "4 step 4 was given up: rank 0: " in said[1][1]
    assert "another process writes this checkpoint now" in said[1][1]


def test_each_rank_takes_its_own_where_the_manifest_was_removed(tmp_path: Path) -> None:
    said = ranks(tmp_path, "ckpt.save(7, state(7)).local.result(200)", size=2)
    assert [status for status, _ in said] == [0, 0], said
    (tmp_path / "fast" / "step-00000007" / "penstock-manifest.json").unlink()
    what = "found = state(0)\nsay(ckpt.restore(found), found['w'][0])"
    said = ranks(tmp_path, what, size=2)
    assert [text for _, text in said] == ["7 700.0\n", "7 701.0\n"]


# Steps in which every rank waits for the writing, as where it takes the cores that they need.
BUSY_STEPS = """
large = {"w": np.zeros(2 << 20)}

def saved(number):
    handle = ckpt.save(number, large)
    for _ in range(12):
        handle.local.result(200)
        time.sleep(0.01)
        ckpt.tick()
"""


def test_ranks_agree_on_which_way_a_save_costs_less(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        BUSY_STEPS
        + """
for number in range(9):
    saved(number)
say([int(save.is_blocking) for save in ckpt.saves])
""",
        size=3,
    )
    assert [status for status, _ in said] == [0] * 3, said
    # What the fourth cost is known when the fifth is local; the sixth had been told of by then.
    assert [text for _, text in said] == [f"{[0] * 6 + [1] * 3}\n"] * 3


def test_ranks_that_wait_for_one_another_about_a_save_end_its_blocking(tmp_path: Path) -> None:
    said = ranks(
        tmp_path,
        BUSY_STEPS
        + """
import logging
logging.basicConfig(format="%(message)s", stream=sys.stdout)
for number in range(6):
    saved(number)
if rank == 1:  # comes to the save when it has heard from the other one
    gather("")
    ckpt.save(6, large).local.result(200)
else:
    ckpt.save(6, large)
    gather("")
    ckpt.wait()
saved(7), saved(8)
say([int(save.is_blocking) for save in ckpt.saves])
""",
        size=2,
    )
    assert [status for status, _ in said] == [0] * 2, said
    assert "step 6 is not local after" in said[0][1]
    assert "step 6" not in said[1][1]
    # The seventh had been told to the other rank with the sixth.
    first, second = (text.splitlines()[-1] for _, text in said)
    assert first == f"{[0] * 9}"
    assert second == f"{[0] * 6 + [1, 1, 0]}"
