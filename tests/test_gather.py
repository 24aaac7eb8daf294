"""`penstock gather`: folders of nodes into one run, nothing counted twice, nothing followed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import logwriter
from fixtures import PENSTOCK
from penstock.errors import LogError, RunError
from penstock.runs.gather import gather
from penstock.runs.run import open_run

N_READS = 7


def node(
    folder: Path,
    number: int,
    ranks: list[int],
    *,
    size: int = 4,
    job: str = "mpi-1",
    pid: int = 100,
) -> Path:
    """A node's run folder; rank r makes N_READS + r reads of 100 bytes."""
    folder.mkdir(parents=True)
    for place, rank in enumerate(ranks):
        process = logwriter.Process(
            pid=pid + place,
            header={
                "rank": rank,
                "local_rank": place,
                "world_size": size,
                "host": f"node{number}".encode(),
                "boot_id": bytes([number] * 16),
            },
        )
        for read in range(N_READS + rank):
            process.call("read", 1000 * read, 500, f"/data/{rank}", asked=100, moved=100)
        path = process.write(folder)
        path.rename(folder / f"node{number}.{pid + place}.1.events")
    (folder / "run.json").write_text(json.dumps({"job": job, "rank": ranks[0], "status": 0}))
    return folder


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    return [node(tmp_path / "a", 1, [0, 1]), node(tmp_path / "b", 2, [2, 3])]


def reads(folder: Path) -> dict[int, tuple[int, int]]:
    with open_run(folder) as run:
        rows = run.sql(
            "SELECT p.rank, count(*), sum(e.moved_bytes)::BIGINT FROM events e"
            " JOIN processes p USING (process) WHERE e.op = 'read' GROUP BY 1 ORDER BY 1"
        )
    return {rank: (n, n_bytes) for rank, n, n_bytes in rows}


ALL = {rank: (N_READS + rank, 100 * (N_READS + rank)) for rank in range(4)}


def test_the_gathered_run_is_the_sum_of_its_nodes(nodes: list[Path], tmp_path: Path) -> None:
    done = gather(nodes, tmp_path / "run")
    assert (done.size, done.ranks, done.missing, done.logs, done.left_out) == (4, 4, (), 4, {})
    assert reads(tmp_path / "run") == ALL
    assert [json.loads(path.read_text())["rank"] for path in sorted((tmp_path / "run").glob(
        "run*.json"))] == [2, 0]  # run-node-2.json, run.json  # fmt: skip
    assert not list(tmp_path.glob("*-gathering"))


def test_a_half_gathered_job_says_which_ranks_it_lacks(nodes: list[Path], tmp_path: Path) -> None:
    done = gather(nodes[1:], tmp_path / "run")
    assert (done.ranks, done.missing) == (2, (0, 1))
    assert reads(tmp_path / "run") == {rank: ALL[rank] for rank in (2, 3)}


def test_a_folder_by_two_names_and_a_copy_of_it_count_once(
    nodes: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(nodes[0], tmp_path / "copy")
    (tmp_path / "link").symlink_to(nodes[1])
    done = gather([*nodes, tmp_path / "copy", tmp_path / "link"], tmp_path / "run")
    assert done.logs == 4
    assert reads(tmp_path / "run") == ALL


@pytest.mark.parametrize("is_first", [True, False])
def test_of_a_log_that_was_copied_too_early_the_longer_one_counts(
    nodes: list[Path], tmp_path: Path, is_first: bool
) -> None:
    early = tmp_path / "early"
    shutil.copytree(nodes[1], early)
    for path in early.glob("*.events"):
        os.truncate(path, logwriter.HEADER_BYTES)
    gather([early, *nodes] if is_first else [*nodes, early], tmp_path / "run")
    assert reads(tmp_path / "run") == ALL


def test_hosts_of_one_name_and_pids_keep_their_logs_apart(tmp_path: Path) -> None:
    folders = [node(tmp_path / "a", 1, [0, 1]), node(tmp_path / "b", 2, [2, 3])]
    for path in folders[1].glob("*.events"):
        path.rename(path.with_name(path.name.replace("node2", "node1")))
    gather(folders, tmp_path / "run")
    assert reads(tmp_path / "run") == ALL


def test_one_rank_in_two_folders_is_refused(nodes: list[Path], tmp_path: Path) -> None:
    again = node(tmp_path / "again", 3, [3], pid=500)
    with pytest.raises(RunError, match=r"rank 3 is in .*/b and in .*/again: of two runs"):
        gather([*nodes, again], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folders_of_two_jobs_are_refused(nodes: list[Path], tmp_path: Path) -> None:
    other = node(tmp_path / "other", 3, [2], job="mpi-2")
    with pytest.raises(RunError, match="different jobs are compared"):
        gather([nodes[0], other], tmp_path / "run")


def test_a_launchers_own_processes_are_no_ranks_of_the_job(
    nodes: list[Path], tmp_path: Path
) -> None:
    """srun starts torchrun once a node: its number there is no rank of the training."""
    agent = node(tmp_path / "agent", 2, [1], size=2, pid=900)
    for path in agent.glob("*.events"):
        path.rename(nodes[1] / path.name)
    done = gather(nodes, tmp_path / "run")
    assert (done.size, done.ranks, done.missing) == (4, 4, ())


def test_a_target_that_is_there_is_left_alone(nodes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="is there already"):
        gather(nodes, tmp_path / "run")
    assert not any((tmp_path / "run").iterdir())


def test_what_is_no_part_of_a_run_is_left_out_and_named(nodes: list[Path], tmp_path: Path) -> None:
    outside = tmp_path / "secret.log"
    outside.write_text("secret")
    (nodes[0] / "node1.5.1.events").symlink_to(outside)
    os.mkfifo(nodes[0] / "node1.6.1.events")
    (nodes[0] / "node1.7.1.events").write_text("no log")
    (nodes[0] / "..evil\n.8.1.events").write_bytes((nodes[0] / "node1.100.1.events").read_bytes())
    (nodes[0] / "tables").mkdir()
    (nodes[0] / "notes.txt").write_text("mine")
    done = gather(nodes, tmp_path / "run")
    whys = {Path(path).name: why for path, why in done.left_out.items()}
    assert whys.keys() == {
        "node1.5.1.events",
        "node1.6.1.events",
        "node1.7.1.events",
        "..evil\\n.8.1.events",
    }
    assert "cannot be opened" in whys["node1.5.1.events"]
    assert whys["node1.6.1.events"] == "no regular file"
    assert "not a log" in whys["node1.7.1.events"]
    assert whys["..evil\\n.8.1.events"] == "no name that the recorder gives"
    assert reads(tmp_path / "run") == ALL
    assert b"secret" not in b"".join(path.read_bytes() for path in (tmp_path / "run").glob("*.*"))


def test_a_newer_log_is_refused_in_a_sentence(nodes: list[Path], tmp_path: Path) -> None:
    path = nodes[0] / "node1.100.1.events"
    content = bytearray(path.read_bytes())
    content[8] = 99
    path.write_bytes(content)
    with pytest.raises(LogError, match="written by format 99"):
        gather(nodes, tmp_path / "run")


def test_an_interrupted_gathering_goes_on_where_it_was(nodes: list[Path], tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done * 2 >= total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(nodes, tmp_path / "run", stop)
    assert not (tmp_path / "run").exists()
    # What was torn in the middle of a file is copied again, what is whole is not.
    (draft,) = tmp_path.glob("*-gathering")
    (draft / "node2.100.1.events.part").write_bytes(b"half")
    there = {path.name: path.stat().st_ino for path in draft.glob("*.events")}
    assert len(there) == 2
    done = gather(nodes, tmp_path / "run")
    assert done.copied == 2
    assert {name: (tmp_path / "run" / name).stat().st_ino for name in there} == there
    assert not list((tmp_path / "run").glob("*.part"))
    assert reads(tmp_path / "run") == ALL


def test_a_source_that_changed_since_the_interruption_is_copied_again(
    nodes: list[Path], tmp_path: Path
) -> None:
    draft = tmp_path / "run-gathering"
    draft.mkdir()
    (draft / "node1.100.1.events").write_bytes(b"of another time")
    (draft / "node9.1.1.events").write_bytes(b"of another folder")
    gather(nodes, tmp_path / "run")
    assert reads(tmp_path / "run") == ALL
    assert not (tmp_path / "run" / "node9.1.1.events").exists()


def test_no_log_no_folder_and_a_file_are_told(nodes: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no log of penstock in it"):
        gather([*nodes, tmp_path / "empty"], tmp_path / "run")
    with pytest.raises(RunError, match="No such file"):
        gather([tmp_path / "nowhere"], tmp_path / "run")
    with pytest.raises(RunError, match="a file; a run is the folder"):
        gather([nodes[0] / "run.json"], tmp_path / "run")


def test_the_command_says_what_is_missing(nodes: list[Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [PENSTOCK, "gather", nodes[0], "-o", tmp_path / "run", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 4 ranks are missing: 2, 3" in done.stderr
    assert json.loads(done.stdout)["missing"] == [2, 3]
