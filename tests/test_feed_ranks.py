"""Ranks that agree on a feed: threads of a test, processes of MPI, and two hosts with a cable."""

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lmdb
import pytest

import penstock
from hosts import WHY_NO_HOSTS, Host, two_hosts
from penstock.errors import FeedError
from penstock.feed import Feed, open_index
from penstock.feed.ranks import node_feed, shared_index

LIBRARY = Path(penstock.__file__).with_name("libfeed.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the reader is not built: make native")
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or shutil.which("mpirun") is None,
    reason="mpi4py or mpirun is not installed",
)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_hosts = pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)

N = 203  # no multiple of anything


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "train.lmdb"
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(N):
            txn.put(b"%06d" % i, bytes([i]) * (500 + 37 * i))
    return folder


KEYS = [f"{i:06}" for i in range(N)]


# Ranks as threads: what they say to each other, and what becomes of errors


class Threads:
    """A rank of a job whose ranks are threads of this process."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, said: list[bytes]) -> None:
        self.rank, self.size = rank, size
        self._meeting, self._said = meeting, said

    def gather(self, data: bytes) -> list[bytes]:
        self._said[self.rank] = data
        self._meeting.wait(240)
        told = list(self._said)
        self._meeting.wait(240)
        return told

    def broadcast(self, data: bytes) -> bytes:
        return self.gather(data)[0]


def as_threads(size: int, work: Any) -> list[Any]:
    """What work(rank) gives or raises on each of `size` ranks."""
    meeting, said, answers = threading.Barrier(size), [b""] * size, [None] * size

    def run(rank: int) -> None:
        try:
            answers[rank] = work(Threads(rank, size, meeting, said))
        except Exception as error:
            answers[rank] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    return answers


def test_one_rank_makes_the_index_of_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers = []

    def counted(*given: Any, **options: Any) -> Any:
        makers.append(threading.current_thread())
        return open_index(*given, **options)

    monkeypatch.setattr("penstock.feed.state.open_index", counted)
    found = as_threads(3, lambda ranks: shared_index(path, ranks))
    assert len(makers) == 1
    truth = open_index(path)
    for index in found:
        assert [index.key(i) for i in range(N)] == [truth.key(i) for i in range(N)]
        assert (index.offset == truth.offset).all()


def test_ranks_of_a_node_share_its_readers_and_get_each_record_once(path: Path) -> None:
    def work(ranks: Threads) -> list[bytes]:
        with node_feed(path, 8, ranks, shuffle="global", readers=2, buffer_bytes=4 << 20) as feed:
            keys = [key for batch in feed for key in batch.keys]
            ranks.gather(b"")  # the first waits for those of other processes, not of its own
            return keys

    shares = as_threads(3, work)
    assert sorted(key.decode() for share in shares for key in share) == KEYS
    for rank, share in enumerate(shares):
        with Feed(path, 8, shuffle="global", rank=rank, world_size=3) as feed:
            assert [key for batch in feed for key in batch.keys] == share


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "rank 2 asks for .*'seed', 1.* rank 0 for"),
        ({"buffer_bytes": 1000}, "too few for 3 ranks"),
        ({"wish": 1}, "unexpected keyword"),
    ],
)
def test_what_is_wrong_on_one_rank_is_an_error_of_all(
    path: Path, change: dict[str, int], said: str
) -> None:
    def work(ranks: Threads) -> None:
        # A wish of the last rank alone is a difference, one of all a failure of their readers.
        is_asked = ranks.rank == 2 or "seed" not in change
        with node_feed(path, 8, ranks, shuffle="global", **(change if is_asked else {})):
            raise AssertionError("begun all the same")

    for error in as_threads(3, work):
        with pytest.raises(FeedError, match=said):
            raise error


def test_an_index_that_cannot_be_made_is_an_error_of_all(tmp_path: Path) -> None:
    for error in as_threads(2, lambda ranks: shared_index(tmp_path / "gone", ranks)):
        with pytest.raises(FeedError, match=r"rank 0: .*gone"):
            raise error


def test_a_rank_that_fails_leaves_no_reader_and_the_others_are_told(path: Path) -> None:
    readers: list[int] = []

    def work(ranks: Threads) -> None:
        with node_feed(path, 2, ranks, shuffle="global", readers=1, buffer_bytes=400_000) as feed:
            going = iter(feed)
            next(going)
            if ranks.rank == 0:  # who owns the readers
                node = feed._node
                readers.append(node.get(node.reader(0)))
                raise ZeroDivisionError
            list(going)

    first, second = as_threads(2, work)
    assert isinstance(first, ZeroDivisionError)
    assert isinstance(second, FeedError)
    assert "was closed" in str(second)
    assert not Path(f"/proc/{readers[0]}").exists()


# Ranks of MPI

MPI_PROGRAM = """
import os, sys
from pathlib import Path
from mpi4py import MPI
from penstock.adapters.mpi import node_feed, shared_index
from penstock.feed import pages

path, folder = sys.argv[1], Path(sys.argv[2])
n_walks, walk = 0, pages.spans
def spans(*given):
    global n_walks
    n_walks += 1
    return walk(*given)
pages.spans = spans

rank = MPI.COMM_WORLD.Get_rank()
index = shared_index(path)
readers = []
with node_feed(index, 8, shuffle="block", seed=3, readers=1) as feed, \\
        open(folder / f"keys-{rank}", "w") as said:
    node = feed._node
    readers = [node.get(node.reader(i)) for i in range(node.terms.n_readers)]
    for _ in range(2):
        for batch in feed:
            for record in batch:
                assert record.tobytes() == bytes([record.number]) * (500 + 37 * record.number)
                print(feed.epoch, record.key.decode(), file=said)
error = ""
try:
    shared_index("/nowhere")
except Exception as caught:
    error = f"{type(caught).__name__}: {caught}"
(folder / f"told-{rank}").write_text("\\n".join([
    str(MPI.COMM_WORLD.Get_size()), str(n_walks), error, os.uname().nodename,
    " ".join(map(str, feed._node.terms.ranks))]))
assert not any(Path(f"/proc/{reader}").exists() for reader in readers) or rank
"""


def mpirun(*words: str | Path) -> list[str]:
    """mpirun as root and with more ranks than cores: a test may."""
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return ["mpirun", *options, *map(str, words)]


def mpi_environment() -> dict[str, str]:
    """Without the launcher of whoever runs the tests: a batch system's variables."""
    found = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMIX", "SLURM"))}
    return found | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def told_by(folder: Path, size: int) -> list[list[str]]:
    return [(folder / f"told-{rank}").read_text().split("\n") for rank in range(size)]


def each_record_once(folder: Path, size: int) -> None:
    lines = [
        line for rank in range(size) for line in (folder / f"keys-{rank}").read_text().splitlines()
    ]
    assert sorted(lines) == sorted(f"{epoch} {key}" for epoch in (0, 1) for key in KEYS)


@needs_mpi
def test_four_ranks_of_mpi_get_each_record_once_and_one_makes_the_index(
    path: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(MPI_PROGRAM)
    before = set(os.listdir("/dev/shm"))
    finished = subprocess.run(
        mpirun("-n", "4", sys.executable, program, path, tmp_path),
        env=mpi_environment(), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    each_record_once(tmp_path, 4)
    told = told_by(tmp_path, 4)
    assert [each[0] for each in told] == ["4"] * 4
    assert [each[1] for each in told] == ["1", "0", "0", "0"]
    assert all(each[2].startswith("FeedError: rank 0: /nowhere") for each in told)
    assert [each[4] for each in told] == ["0 1 2 3"] * 4
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "penstock-feed" in name}


@needs_mpi
def test_a_rank_of_mpi_that_is_killed_leaves_no_reader(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from penstock.adapters.mpi import node_feed
        with node_feed(sys.argv[1], 2, shuffle="global", readers=2, buffer_bytes=800_000) as feed:
            node = feed._node
            if feed.rank == 0:
                readers = [node.get(node.reader(i)) for i in range(2)]
                Path(sys.argv[2]).write_text(" ".join(map(str, readers)))
            for batch in feed:
                if feed.rank == 0 and feed.state_dict()["parts"][-1][-1] == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    said = tmp_path / "readers"
    finished = subprocess.run(
        mpirun("-n", "2", sys.executable, program, path, said),
        env=mpi_environment(), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert finished.returncode != 0
    readers = said.read_text().split()
    assert len(readers) == 2
    deadline = time.monotonic() + 240
    while any(Path(f"/proc/{reader}").exists() for reader in readers):
        assert time.monotonic() < deadline, "a reader outlives the rank that owned it"
        os.sched_yield()


# Hosts


@needs_hosts
@needs_mpi
def test_ranks_of_mpi_on_two_hosts_have_readers_on_each(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MPI_PROGRAM)
    with two_hosts() as (one, other):
        shell = tmp_path / "shell"  # what MPI calls as it would ssh: HOST COMMAND...
        inside = " ".join(other.command(["sh", "-c"]))
        shell.write_text(f'#!/bin/sh\nshift\nexec {inside} "$*"\n')
        shell.chmod(0o755)
        finished = subprocess.run(
            one.command(
                mpirun(
                    "--host", f"{one.name}:2,{other.name}:2", "--mca", "plm_rsh_agent", shell,
                    "--mca", "btl_tcp_if_include", "cable", "--mca", "oob_tcp_if_include", "cable",
                    "-x", "PYTHONPATH", sys.executable, program, path, tmp_path,
                ),
                sees_processes=True,
            ),
            env=mpi_environment(), capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    each_record_once(tmp_path, 4)
    told = told_by(tmp_path, 4)
    assert [each[1] for each in told] == ["1", "0", "0", "0"]
    assert [each[3] for each in told] == [one.name, one.name, other.name, other.name]
    assert [each[4] for each in told] == ["0 1", "0 1", "2 3", "2 3"]


TORCH_PROGRAM = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from penstock.adapters.torch import node_feed
from penstock.feed import pages

path, folder = sys.argv[1], Path(sys.argv[2])
n_walks, walk = 0, pages.spans
def spans(*given):
    global n_walks
    n_walks += 1
    return walk(*given)
pages.spans = spans
dist.init_process_group("gloo")
rank = dist.get_rank()
with node_feed(path, 8, shuffle="global", seed=3, readers=1) as feed, \\
        open(folder / f"keys-{rank}", "w") as said:
    for _ in range(2):
        for batch in feed:
            for record in batch:
                assert record.tobytes() == bytes([record.number]) * (500 + 37 * record.number)
                print(feed.epoch, record.key.decode(), file=said)
(folder / f"told-{rank}").write_text("\\n".join([
    str(dist.get_world_size()), str(n_walks), "", os.uname().nodename,
    " ".join(map(str, feed._node.terms.ranks))]))
dist.destroy_process_group()
"""


@pytest.mark.slow  # six processes import torch
@needs_hosts
@needs_torch
def test_ranks_of_torchrun_on_two_hosts_have_readers_on_each(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TORCH_PROGRAM)
    with two_hosts() as hosts:
        agents = [torchrun(hosts, number, program, path, tmp_path) for number in range(2)]
        said = [agent.communicate(timeout=240)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    each_record_once(tmp_path, 4)
    told = told_by(tmp_path, 4)
    assert [each[0] for each in told] == ["4"] * 4
    assert [each[1] for each in told] == ["1", "0", "0", "0"]
    assert [each[3] for each in told] == [hosts[0].name] * 2 + [hosts[1].name] * 2
    assert [each[4] for each in told] == ["0 1", "0 1", "2 3", "2 3"]


def torchrun(
    hosts: tuple[Host, Host], number: int, program: Path, *words: str | Path
) -> subprocess.Popen[str]:
    here = hosts[number]
    call = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(number),
        "--nproc-per-node", "2", "--master-addr", hosts[0].address, "--master-port", "29511",
        "--local-addr", here.address, program, *words,
    ]  # fmt: skip
    return subprocess.Popen(
        here.command(call),
        env=mpi_environment() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
