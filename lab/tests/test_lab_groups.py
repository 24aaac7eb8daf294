"""Control groups: where they are made, by the texts of both versions, and that they hold."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.errors import TierError
from penstock_lab import groups
from penstock_lab.groups import Group, Hierarchy, from_json, hierarchies, make
from penstock_lab.tier import capped
from slowtier import WHY_NO_DISK, WHY_NO_MEMORY

V1 = """\
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro
35 30 0:31 / /sys/fs/cgroup/blkio rw shared:1 - cgroup cgroup rw,blkio
36 30 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
37 30 0:33 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""
V1_OWN = "9:memory:/docker/abc/job\n8:cpuacct,cpu:/\n7:blkio:/batch/7\n1:name=systemd:/\n"


def test_version_1_has_a_tree_for_each_controller() -> None:
    trees = {tree.controllers[-1]: tree for tree in hierarchies(V1, V1_OWN)}
    assert trees["blkio"].own == "/sys/fs/cgroup/blkio/batch/7"
    assert trees["memory"].own == "/sys/fs/cgroup/memory/job"  # in a container's view
    assert {tree.version for tree in trees.values()} == {1}


def test_a_container_whose_mount_is_its_own_group_finds_it() -> None:
    mounts = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n"
    (tree,) = hierarchies(mounts, "0::/\n")
    assert (tree.version, tree.top, tree.own) == (2, "/sys/fs/cgroup", "/sys/fs/cgroup")


@pytest.mark.parametrize("text", ["", "no mount\n", "1 2 - \n", "- cgroup2 x y\n", " - \n"])
def test_texts_that_are_none_give_no_tree(text: str) -> None:
    assert hierarchies(text, "0::/\nx\n::\n") == []


@pytest.fixture
def tree(tmp_path: Path) -> Hierarchy:
    """A tree of version 2 whose user group hands memory on and io not."""
    own = tmp_path / "user" / "session"
    own.mkdir(parents=True)
    (tmp_path / "cgroup.subtree_control").write_text("io memory\n")
    (tmp_path / "user" / "cgroup.subtree_control").write_text("memory pids\n")
    (own / "cgroup.subtree_control").write_text("\n")
    return Hierarchy(2, ("io", "memory"), str(tmp_path), str(own))


def test_version_2_makes_a_group_where_the_controller_is_handed_on(
    tree: Hierarchy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "device_of", lambda folder: "8:0")
    group = make("penstock-x", None, None, None, 1 << 20, [tree])
    assert group.folders == (f"{tmp_path}/user/penstock-x",)
    assert (tmp_path / "user" / "penstock-x" / "memory.max").read_text() == "1048576"
    assert group.homes == (tree.own,)
    group = make("penstock-y", str(tmp_path), 2e8, 2000, None, [tree])
    assert group.folders == (f"{tmp_path}/penstock-y",)
    text = (tmp_path / "penstock-y" / "io.max").read_text()
    assert text == "8:0 rbps=200000000 wbps=200000000 riops=2000 wiops=2000"


def test_a_controller_that_is_not_handed_on_is_told_with_the_cure(
    tree: Hierarchy, tmp_path: Path
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "user" / "cgroup.subtree_control").write_text("")
    with pytest.raises(TierError, match=r"echo \+memory > .*/cgroup.subtree_control"):
        make("penstock-x", None, None, None, 1 << 20, [tree])


def test_groups_of_killed_programs_are_swept(
    tree: Hierarchy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "hierarchies", lambda: [tree])
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = [tmp_path / f"penstock.{ended.pid}.7", tmp_path / "user" / f"penstock.{ended.pid}.8"]
    full = tmp_path / f"penstock.{ended.pid}.9"
    stays = [full, tmp_path / groups.own_name(), tmp_path / f"penstock-{ended.pid}.7"]
    for place in (*left, *stays, full / "somebody is in it"):
        place.mkdir()
    groups.sweep()
    assert [place.exists() for place in left] == [False, False]
    assert all(place.exists() for place in stays)


def test_a_kernel_without_the_controller_is_told(tree: Hierarchy) -> None:
    with pytest.raises(TierError, match="offers no memory controller"):
        make("x", None, None, None, 1 << 20, [tree._replace(controllers=("io",))])


def test_nothing_to_limit_is_refused(tree: Hierarchy) -> None:
    with pytest.raises(TierError, match="nothing to limit"):
        make("x", None, None, None, None, [tree])


def test_a_folder_in_memory_has_no_disk_to_limit() -> None:
    with pytest.raises(TierError, match="lies on no disk of its own"):
        groups.device_of("/proc")


@pytest.mark.parametrize("value", [None, {}, {"folders": ["a"]}, {"folders": [1], "homes": []}, []])
def test_a_damaged_group_is_none(value: object) -> None:
    with pytest.raises(ValueError, match="no "):
        from_json(value)


def test_a_command_joins_the_group_before_it_begins(tmp_path: Path) -> None:
    group = Group((str(tmp_path),), (str(tmp_path),))
    done = subprocess.run(
        group.wrapped(["sh", "-c", 'echo "$$ $1"', "sh", "a b"]), capture_output=True, text=True
    )
    pid, words = done.stdout.split(maxsplit=1)
    assert (words, (tmp_path / "cgroup.procs").read_text()) == ("a b\n", pid)


# With the kernel


@pytest.mark.skipif(bool(WHY_NO_DISK), reason=WHY_NO_DISK)
def test_the_disk_is_no_faster_than_its_cap(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(12 << 20))
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
    program = f"""
import mmap, os, sys
sys.stdin.readline()
descriptor = os.open({str(file)!r}, os.O_RDONLY | os.O_DIRECT)
with mmap.mmap(-1, 1 << 20) as buffer:
    for offset in range(0, 12 << 20, 1 << 20):
        assert os.preadv(descriptor, [buffer], offset) == 1 << 20
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    with capped(tmp_path, bandwidth=10e6) as group:
        group.add(child.pid)
        start = time.monotonic()
        child.communicate(b"\n", timeout=240)
        seconds = time.monotonic() - start
    assert child.returncode == 0
    assert (12 << 20) / seconds < 1.15 * 10e6  # the first slice of 100 ms may come at once
    assert not any(Path(folder).exists() for folder in group.folders)


@pytest.mark.skipif(bool(WHY_NO_MEMORY), reason=WHY_NO_MEMORY)
def test_memory_past_the_limit_ends_the_program() -> None:
    program = "import sys; sys.stdin.readline(); bytearray(200 << 20); print('lived')"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", program], **pipes)  # type: ignore[call-overload]
    with capped("/tmp", memory_bytes=60 << 20) as group:
        group.add(child.pid)
        said, _ = child.communicate(b"\n", timeout=240)
    assert (child.returncode, said) == (-9, b"")


@pytest.mark.skipif(bool(WHY_NO_MEMORY), reason=WHY_NO_MEMORY)
def test_what_still_runs_goes_back_and_the_group_goes_away() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        with capped("/tmp", memory_bytes=1 << 30) as group:
            group.add(child.pid)
            (folder,) = group.folders
            assert str(child.pid) in Path(f"{folder}/cgroup.procs").read_text().split()
        assert not Path(folder).exists()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(bool(WHY_NO_MEMORY), reason=WHY_NO_MEMORY)
def test_a_group_whose_maker_was_killed_is_gone_after_the_next() -> None:
    program = """
import os
from penstock_lab.tier import capped
with capped("/tmp", memory_bytes=1 << 30) as group:
    print(*group.folders, flush=True)
    os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    (folder,) = killed.stdout.split()
    assert (killed.returncode, Path(folder).is_dir()) == (-9, True)
    with capped("/tmp", memory_bytes=1 << 30):
        assert not Path(folder).exists()
