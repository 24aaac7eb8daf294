"""Ranks of one job, each recorded: what a launcher tells them, one folder for all, exact sums."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import PENSTOCK, thorough
from hosts import WHY_NO_HOSTS, two_hosts
from penstock.explain.measures import measure
from penstock.recording import launch
from penstock.recording.offset import Offset, ask
from penstock.runs.run import Run, open_run

pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)
needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="there is no mpirun: apt install openmpi-bin"
)
MPICH = shutil.which("mpirun.mpich")
needs_mpich = pytest.mark.skipif(MPICH is None, reason="there is no MPICH: apt install mpich")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_hosts = pytest.mark.skipif(bool(WHY_NO_HOSTS), reason=WHY_NO_HOSTS)

RANKS = 4
# Rank r reads 10 + r pieces of its own file and 5 of the file that all read, 1000 bytes each, and
# takes three steps.
PROGRAM = """
import os, sys
import penstock

folder = sys.argv[1]
names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
rank = int(next(os.environ[name] for name in names if name in os.environ))
for step in range(3):
    with penstock.step(step):
        if step == 1:
            for name, n in ((f"own-{rank}", 10 + rank), ("common", 5)):
                file = os.open(f"{folder}/{name}", os.O_RDONLY)
                for _ in range(n):
                    os.read(file, 1000)
                os.close(file)
"""


def job_in(folder: Path) -> list[str]:
    """The command of one rank, and its files."""
    (folder / "program.py").write_text(PROGRAM)
    for name in ("common", *(f"own-{rank}" for rank in range(RANKS))):
        (folder / name).write_bytes(bytes(20_000))
    return [sys.executable, str(folder / "program.py"), str(folder)]


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    return job_in(tmp_path)


def unlaunched() -> dict[str, str]:
    """Without the launcher of whoever runs the tests: a batch system's variables."""
    foreign = ("OMPI", "PMI", "PRTE", "SLURM", "TORCHELASTIC", "MPI_LOCAL")
    found = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        found.pop(name, None)
    return found | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def mpirun(*words: str | Path, n: int = RANKS) -> list[str | Path]:
    """mpirun as root and with more ranks than cores: a test may."""
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(n),
            *words]  # fmt: skip


def torchrun(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone",  # at a port that is free
            "--nproc-per-node", str(RANKS), *words]  # fmt: skip


def finished(
    command: Sequence[str | Path], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, command)),
        env=unlaunched() | (environ or {}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def each_rank_is_exact(run: Run, hosts: int = 1) -> None:
    """By arithmetic, from what the program does: no number of ours is compared with another."""
    rows = run.sql(
        "SELECT p.rank, regexp_extract(e.path, '[^/]*$'), count(*), sum(e.moved_bytes)"
        " FROM events e JOIN processes p USING (process)"
        " WHERE e.op = 'read' AND regexp_matches(e.path, '/(own-[0-9]|common)$')"
        " GROUP BY ALL ORDER BY ALL"
    )
    expected = []
    for rank in range(RANKS):
        expected.append((rank, "common", 5, 5000))
        expected.append((rank, f"own-{rank}", 10 + rank, 1000 * (10 + rank)))
    assert rows == expected
    ranks = run.sql(
        "SELECT DISTINCT rank, world_size FROM processes WHERE rank IS NOT NULL ORDER BY ALL"
    )
    assert ranks == [(rank, RANKS) for rank in range(RANKS)]
    measures = measure(run)
    assert [(row.rank, row.steps) for row in measures.ranks] == [(n, 3) for n in range(RANKS)]
    assert len({row.host for row in measures.ranks}) == hosts


# What a launcher tells


@pytest.mark.parametrize(
    ("told", "is_recorded"),
    [
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (5, 1, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3",
          "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (2, 0, 3)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, (1, 1, 2)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4",
          "MV2_COMM_WORLD_LOCAL_RANK": "1"}, (1, 1, 4)),
        ({"SLURM_PROCID": "7", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "8",
          "SLURM_LOCALID": "3"}, (7, 3, 8)),
        # torchrun below mpirun below Slurm: the innermost counts
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0",
          "SLURM_NTASKS": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
         (5, 1, 8)),
        # the word RANK alone, as programs use it for other things
        ({"RANK": "16"}, (None, None, None)),
        ({"RANK": "16", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, None, 2)),
        # a batch job's script: started once, beside what the job asked for
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, (None, None, None)),
        # by hand from Slurm's, as many scripts do it
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_LOCALID": "1"}, (1, 1, 2)),
        # no numbers, and none that fit
        ({"RANK": "-1", "WORLD_SIZE": "2"}, (None, None, None)),
        ({"RANK": "3x", "WORLD_SIZE": "8"}, (None, None, None)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (None, None, None)),
        ({"RANK": "0", "WORLD_SIZE": "99999999999999999999999"}, (None, None, None)),
        ({"RANK": "", "WORLD_SIZE": ""}, (None, None, None)),
    ],
)  # fmt: skip
def test_a_process_knows_which_of_how_many_it_is(
    tmp_path: Path, told: dict[str, str], is_recorded: tuple[int | None, ...]
) -> None:
    # Not by penstock run, which is asked below: what the recorder itself makes of them.
    environ = launch.environment(tmp_path, 1 << 20, unlaunched())
    subprocess.run(["cat", "/dev/null"], env=environ | told, check=True)
    with open_run(tmp_path) as run:
        ((rank, local, size),) = run.sql("SELECT rank, local_rank, world_size FROM processes")
    assert (rank, local, size) == is_recorded


SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "77",
         "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}  # fmt: skip
TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "node-a",
         "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip


def key(environ: Mapping[str, str], **changed: str) -> str:
    found = launch.rank_of_job({**environ, **changed})
    assert found is not None
    return found.key


def test_a_job_has_one_key_for_all_its_ranks_and_no_other_job_has_it() -> None:
    assert launch.rank_of_job(SLURM) == launch.RankOfJob(key(SLURM), 1, 2, False)
    assert key(SLURM) == key(SLURM, SLURM_PROCID="0", SLURM_LOCALID="0")
    assert key(SLURM) != key(SLURM, SLURM_STEP_ID="1")
    assert key(TORCH) == key(TORCH, RANK="0", LOCAL_RANK="0")
    assert key(TORCH) != key(TORCH, TORCHELASTIC_RESTART_COUNT="1")
    assert key(TORCH) == key(TORCH | SLURM)  # torchrun below Slurm
    hydra = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    assert key(hydra) == key(hydra, PMI_RANK="1")
    # MPICH's launcher names no job: ranks of other hosts cannot know that they belong to it.
    assert launch.rank_of_job(hydra | {"MPI_LOCALNRANKS": "1"}) is None


def test_one_rank_or_none_is_no_job_of_several() -> None:
    assert launch.rank_of_job({}) is None
    assert launch.rank_of_job(TORCH | {"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert launch.rank_of_job({"RANK": "0", "WORLD_SIZE": "2"}) is None  # of which job?
    assert launch.rank_of_job(TORCH | {"RANK": "٣"}) is None  # a digit, and no number of a launcher


def test_a_hostile_job_id_names_no_folder_elsewhere() -> None:
    told = key(SLURM, SLURM_JOB_ID="../../etc/x\n\0", SLURM_STEP_ID="..")
    assert re.fullmatch(r"[0-9A-Za-z.-]+", told)
    assert ".." not in told.strip(".") or "/" not in told


# Ranks take one folder


def rank(number: int, of: int = 2, key: str = "a-job") -> launch.RankOfJob:
    return launch.RankOfJob(key, number, of)


def take(folder: Path, job: launch.RankOfJob | None) -> Path:
    """As `penstock run` does it: the facts are written at once."""
    taken = launch.make_folder(["x"], folder, job=job)
    launch.write_facts(taken, {"start_unix_ns": 1}, job)
    return taken


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_of_a_job_take_one_folder_whoever_comes_first(tmp_path: Path, first: int) -> None:
    wanted = tmp_path / "run"
    assert take(wanted, rank(first)) == take(wanted, rank(1 - first)) == wanted
    assert (wanted / "run.json").exists()
    assert json.loads((wanted / f"run-rank-{1 - first}.json").read_text())["rank"] == 1 - first


def test_another_job_and_the_same_rank_again_take_folders_of_their_own(tmp_path: Path) -> None:
    wanted = tmp_path / "run"
    take(wanted, rank(0))
    take(wanted, rank(1))
    assert take(wanted, rank(0, key="other")) == tmp_path / "run-2"
    assert take(wanted, rank(1, key="other")) == tmp_path / "run-2"
    assert take(wanted, rank(1)) == tmp_path / "run-3"  # of a job with the same key, later
    assert take(wanted, None) == tmp_path / "run-4"
    assert take(wanted, rank(0)) == tmp_path / "run-3"


def test_a_folder_of_someone_else_is_left_alone_by_all_ranks(tmp_path: Path) -> None:
    wanted = tmp_path / "run"
    wanted.mkdir()
    (wanted / "thesis.tex").touch()
    assert take(wanted, rank(1)) == take(wanted, rank(0)) == tmp_path / "run-2"


def test_a_job_that_ended_long_ago_is_not_joined(tmp_path: Path) -> None:
    wanted = take(tmp_path / "run", rank(0))
    launch.write_facts(wanted, {"end_unix_ns": 1}, rank(0))
    assert take(wanted, rank(1)) == tmp_path / "run-2"


def test_a_rank_that_cannot_start_leaves_the_others_their_folder(tmp_path: Path) -> None:
    wanted = tmp_path / "run"
    for number in (0, 1):
        take(wanted, rank(number))
    launch.give_up(wanted, rank(1))
    assert not (wanted / "run-rank-1.json").exists()
    take(wanted, rank(1))
    launch.give_up(wanted, rank(0))
    assert (wanted / "run.json").exists()  # rank 1 is there


# Real launchers


@needs_mpirun
def test_penstock_run_around_mpirun_records_every_rank(job: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    finished([PENSTOCK, "run", "-q", "-o", run, *mpirun(*job)])
    with open_run(run) as opened:
        each_rank_is_exact(opened)


@needs_mpirun
def test_penstock_run_below_mpirun_makes_one_run_and_one_report(
    job: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = finished(mpirun(PENSTOCK, "run", "-o", run, *job))
    assert done.stderr.count("Recorded in ") == 1, done.stderr
    assert not list(tmp_path.glob("run-*"))
    facts = [json.loads(path.read_text()) for path in run.glob("run*.json")]
    assert sorted(fact["rank"] for fact in facts) == list(range(RANKS))
    assert [fact["status"] for fact in facts] == [0] * RANKS
    with open_run(run) as opened:
        each_rank_is_exact(opened)
        # What the program moved is each rank's own account; the host is told of by one of them.
        jobs = opened.sql("SELECT count(DISTINCT device) FROM system WHERE kind = 'job'")
        assert jobs == [(RANKS,)]
        assert opened.sql(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM system WHERE kind = 'memory'"
            " GROUP BY at_ns, quantity)"
        ) == [(1,)]
        ends = opened.sql(
            "SELECT count(*) FROM processes WHERE rank IS NOT NULL AND state = 'exited'"
        )
        assert ends >= [(RANKS,)]


@needs_mpich
@pytest.mark.parametrize("is_below", [False, True])
def test_mpich_with_four_ranks(job: list[str], tmp_path: Path, is_below: bool) -> None:
    run = tmp_path / "run"
    record: list[str | Path] = [PENSTOCK, "run", "-q", "-o", run]
    launch_4 = [str(MPICH), "-n", str(RANKS)]
    finished([*launch_4, *record, *job] if is_below else [*record, *launch_4, *job])
    assert not list(tmp_path.glob("run-*"))
    with open_run(run) as opened:
        each_rank_is_exact(opened)


def test_srun_starts_as_many_penstocks_as_ranks(job: list[str], tmp_path: Path) -> None:
    """Slurm's variables, as srun sets them for each task; there is no Slurm here."""
    common = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(RANKS)}
    tasks = [
        subprocess.Popen(
            [PENSTOCK, "run", "-q", *job],
            env=unlaunched() | common | {"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(RANKS)
    ]
    said = [task.communicate(timeout=240)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0] * RANKS, said
    (run,) = (tmp_path / "penstock-runs").iterdir()
    assert run.name.startswith("program-slurm-4711.0-")
    with open_run(run) as opened:
        each_rank_is_exact(opened)


@pytest.mark.slow  # five processes import torch
@needs_torch
@pytest.mark.parametrize("is_below", [thorough(False, like="True"), True])
def test_torchrun_with_four_ranks(job: list[str], tmp_path: Path, is_below: bool) -> None:
    run = tmp_path / "run"
    record: list[str | Path] = [PENSTOCK, "run", "-q", "-o", run]
    finished(
        torchrun("--no-python", *record, *job) if is_below else [*record, *torchrun(*job[1:])],
        {"OMP_NUM_THREADS": "1"},
    )
    assert not list(tmp_path.glob("run-*"))
    with open_run(run) as opened:
        each_rank_is_exact(opened)


@pytest.mark.slow  # six processes import torch
@needs_torch
@needs_hosts
def test_torchrun_on_two_hosts_makes_one_run(job: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    with two_hosts() as hosts:
        agents = []
        for number, host in enumerate(hosts):
            words = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--nproc-per-node", "2", "--node-rank", str(number)),
                *("--master-addr", hosts[0].address, "--master-port", "29500", "--no-python"),
                *(PENSTOCK, "run", "-q", "-o", run, *job),
            ]
            agents.append(
                subprocess.Popen(
                    host.command(words),
                    env=unlaunched() | {"OMP_NUM_THREADS": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        said = [agent.communicate(timeout=240)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert not list(tmp_path.glob("run-*"))
    with open_run(run) as opened:
        each_rank_is_exact(opened, hosts=2)


@needs_mpich
@needs_hosts
def test_ranks_of_mpich_on_two_hosts_are_gathered(job: list[str], tmp_path: Path) -> None:
    """Its launcher names no job: a folder a rank, and the user gathers them."""
    with two_hosts() as (one, other):
        shell = tmp_path / "shell"  # what Hydra calls as it would ssh: [-x] HOST COMMAND...
        inside = " ".join(other.command(["sh", "-c"]))
        shell.write_text(f'#!/bin/sh\n[ "$1" != -x ] || shift\nshift\nexec {inside} "$*"\n')
        shell.chmod(0o755)
        finished(
            one.command(
                [
                    *(str(MPICH), "-launcher", "ssh", "-launcher-exec", shell, "-iface", "cable"),
                    *("-hosts", f"{one.name}:2,{other.name}:2", "-n", str(RANKS)),
                    *(PENSTOCK, "run", "-q", "-o", tmp_path / "run", *job),
                ],
                sees_processes=True,
            )
        )
    folders = sorted(tmp_path.glob("run*"))
    assert len(folders) == RANKS
    finished([PENSTOCK, "gather", *folders, "-o", tmp_path / "all"])
    with open_run(tmp_path / "all") as opened:
        each_rank_is_exact(opened, hosts=2)


def two_host_job(tmp_path: Path, output: str, job: Sequence[str]) -> Any:
    """Two ranks on each of two hosts, under mpirun on the first of them."""
    with two_hosts() as (one, other):
        shell = tmp_path / "shell"  # what MPI calls as it would ssh: HOST COMMAND...
        inside = " ".join(other.command(["sh", "-c"]))
        shell.write_text(f'#!/bin/sh\nshift\nexec {inside} "$*"\n')
        shell.chmod(0o755)
        within = tmp_path / "within"  # $HOST of its own host: a folder a node, or one for all
        within.write_text(f'#!/bin/sh\nexec {PENSTOCK} run -q -o "{output}" {" ".join(job)}\n')
        within.chmod(0o755)
        return finished(
            one.command(
                mpirun(
                    "--host", f"{one.name}:2,{other.name}:2", "--mca", "plm_rsh_agent", shell,
                    "--mca", "oob_tcp_if_include", "cable", "-x", "PYTHONPATH", within,
                ),
                sees_processes=True,
            )
        )  # fmt: skip


@needs_mpirun
@needs_hosts
def test_ranks_of_two_hosts_meet_in_one_folder(job: list[str], tmp_path: Path) -> None:
    two_host_job(tmp_path, str(tmp_path / "run"), job)
    assert not list(tmp_path.glob("run-*"))
    with open_run(tmp_path / "run") as opened:
        each_rank_is_exact(opened, hosts=2)


@needs_mpirun
@needs_hosts
def test_folders_of_two_hosts_are_gathered_into_one_run(job: list[str], tmp_path: Path) -> None:
    two_host_job(tmp_path, str(tmp_path / "$(uname -n)" / "run"), job)
    folders = [tmp_path / name / "run" for name in ("node-a", "node-b")]
    for folder in folders:
        assert len(list(folder.glob("run*.json"))) == 2
    done = finished([PENSTOCK, "gather", *folders, "-o", tmp_path / "run"])
    assert done.stdout.startswith(f"{tmp_path / 'run'}: 4 of 4 ranks, ")
    assert not done.stderr
    with open_run(tmp_path / "run") as opened:
        each_rank_is_exact(opened, hosts=2)


# What launchers tell each other of their clocks


@needs_hosts
def test_two_hosts_of_one_kernel_find_that_their_clock_is_one(tmp_path: Path) -> None:
    """The truth is known: both namespaces have the same CLOCK_MONOTONIC."""
    asking = (
        "import json, sys; from pathlib import Path; from penstock.recording.offset import ask\n"
        # On a busy machine an answer may take longer than is waited for.
        "for _ in range(20):\n"
        "    if told := ask(Path(sys.argv[1]), is_same_boot_too=True): break\n"
        "print(json.dumps(told))"
    )
    answering = (
        "import sys; from pathlib import Path; from penstock.recording.offset import Offset\n"
        "with Offset(Path(sys.argv[1]), True): print('ready', flush=True); sys.stdin.read()"
    )
    with two_hosts() as (one, other):
        first = subprocess.Popen(
            one.command([sys.executable, "-c", answering, tmp_path]),
            env=unlaunched(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert first.stdout
        assert first.stdout.readline() == "ready\n"
        assert (tmp_path / "clock").stat().st_mode & 0o777 == 0o600
        told = json.loads(finished(other.command([sys.executable, "-c", asking, tmp_path])).stdout)
        first.communicate("")
    clock = told["clock"]
    assert abs(clock["offset_ns"]) <= clock["error_ns"]
    assert not (tmp_path / "clock").exists()


def test_only_who_knows_the_word_is_answered(tmp_path: Path) -> None:
    with Offset(tmp_path, True):
        assert ask(tmp_path) == {}  # the same clock: nothing to ask
        assert ask(tmp_path, is_same_boot_too=True)["clock"]["error_ns"] > 0
        told = json.loads((tmp_path / "clock").read_text())
        (tmp_path / "clock").write_text(json.dumps(told | {"word": "00" * 32}))
        assert ask(tmp_path, is_same_boot_too=True) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"boot_id": 1, "port": "x", "word": "", "addresses": []}',
             '{"boot_id": "a", "port": 99999999, "word": "00", "addresses": ["127.0.0.1"]}',
             '{"boot_id": "a", "port": 1, "word": "0g", "addresses": "127"}'],
)  # fmt: skip
def test_a_damaged_clock_file_asks_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "clock").write_text(text)
    assert ask(tmp_path) == {}
