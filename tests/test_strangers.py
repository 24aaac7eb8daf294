"""What a stranger in a shared folder can plant or exchange; who may read what Penstock copies."""

import os
import stat
from pathlib import Path

import pytest

import logwriter
from penstock.errors import RunError, TierError
from penstock.runs.gather import gather
from penstock.safe import drafts


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "private" / "secret"
    path.parent.mkdir(mode=0o700)
    path.write_text("secret")
    path.chmod(0o600)
    return path


# --- gather --------------------------------------------------------------------------------------


def test_a_folder_put_in_the_place_of_a_gathering_is_not_touched(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = logwriter.Process(pid=100)
    process.call("read", 1000, 500, "/data/a", asked=100, moved=100)
    (tmp_path / "node").mkdir()
    process.write(tmp_path / "node")
    made = drafts.run_folder

    def exchanged(path: str | os.PathLike[str], is_for_group: bool = False) -> bool:
        is_new = made(path, is_for_group)
        os.rename(path, tmp_path / "aside")
        os.symlink(secret.parent, path)
        return is_new

    monkeypatch.setattr(drafts, "run_folder", exchanged)
    with pytest.raises(RunError, match="run-gathering"):
        gather([tmp_path / "node"], tmp_path / "run")
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


# --- logs ----------------------------------------------------------------------------------------


def test_a_log_cut_to_nothing_makes_the_recording_incomplete(tmp_path: Path) -> None:
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of
    from penstock.runs.run import open_run

    process = logwriter.Process(pid=100)
    process.call("read", 1000, 500, "/data/a", asked=100, moved=100)
    process.write(tmp_path)
    (tmp_path / "host.101.0.events").write_bytes(b"")
    with open_run(tmp_path) as run:
        report = report_of(measure(run))
    assert "X1" in [finding.rule for finding in report.findings]
    assert any("cut by another program" in gap.why for gap in report.gaps)


# --- checkpoints ---------------------------------------------------------------------------------


def test_a_mark_for_readers_gets_its_mode_before_its_name(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chmod by name follows a link that takes the place of the mark."""
    from penstock.save.overwritten.putback import MARK, mark_put_back

    (tmp_path / "model.pt").write_bytes(b"x")
    before = os.umask(0o077)
    try:
        status = (tmp_path / "model.pt").stat()
        monkeypatch.setattr(os, "chmod", lambda *_, **__: pytest.fail("a chmod by name"))
        mark_put_back(tmp_path, {"model.pt": (status.st_size, status.st_mtime_ns)})
    finally:
        os.umask(before)
    assert mode(tmp_path / MARK) == 0o644


@pytest.mark.parametrize("n_files", [1, 40])  # one by one, and together
def test_a_copy_of_a_checkpoint_is_as_private_as_the_checkpoint(
    tmp_path: Path, n_files: int
) -> None:
    from penstock.save.drain.drainer import Drainer

    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for folder, file in ((0o755, 0o600), (0o700, 0o644), (0o755, 0o644), (0o750, 0o640)):
        step = fast / f"step_{folder:o}{file:o}"
        step.mkdir(parents=True)
        for number in range(n_files):
            path = step / f"part_{number}.bin"
            path.write_bytes(os.urandom(100))
            path.chmod(file)
            os.utime(path, (1, 1))
        step.chmod(folder)
    slow.mkdir()
    before = os.umask(0o022)
    try:
        with Drainer(fast, slow) as drainer:
            drainer.once()
    finally:
        os.umask(before)
    found = {path.name: {mode(one) for one in path.glob("part*")} for path in slow.glob("step*")}
    assert found == {
        "step_755600": {0o600},
        "step_700644": {0o600},
        "step_755644": {0o644},
        "step_750640": {0o640},
    }


def test_the_names_on_a_burst_tier_are_private_and_a_link_leads_to_a_file(tmp_path: Path) -> None:
    from penstock.save.burst.tier import prepare

    before = os.umask(0o022)
    try:
        folder = prepare(tmp_path)
    finally:
        os.umask(before)
    found = {path.name: mode(path) for path in (folder, *folder.iterdir())}
    assert found == {"burst": 0o711, "data": 0o711, "home": 0o700, "draft": 0o700}


def test_nothing_is_written_through_what_a_stranger_has_planted_on_a_burst_tier(
    tmp_path: Path, secret: Path
) -> None:
    from penstock.save.burst.drain import BurstDrain
    from penstock.save.burst.tier import prepare

    (tmp_path / "fast").mkdir()
    folder = prepare(tmp_path / "fast")
    (folder / "data" / f".probe-{os.getpid()}").symlink_to(secret.parent / "made")
    prepare(tmp_path / "fast")
    (tmp_path / "fast" / ".penstock").symlink_to(secret.parent)
    with pytest.raises(TierError, match="a link"):
        BurstDrain(tmp_path / "fast", owner="abcdef").start({})
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]
    if os.geteuid() == 0:
        os.chown(folder / "data", 65534, 65534)
        with pytest.raises(TierError, match="belongs to user 65534"):
            prepare(tmp_path / "fast")


# --- data sets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("planted", ["pipe", "zero", "hole"])
def test_what_lies_in_the_place_of_an_index_is_not_waited_for_or_read(
    tmp_path: Path, planted: str
) -> None:
    from penstock.feed.index import open_index
    from penstock.feed.tfrecord import framed

    data, index = tmp_path / "a.tfrecord", tmp_path / ".a.tfrecord.penstock-index"
    data.write_bytes(framed(b"x") * 10)
    if planted == "pipe":
        os.mkfifo(index)
    elif planted == "zero":
        index.symlink_to("/dev/zero")
    else:
        index.touch()
        os.truncate(index, 1 << 41)
    assert len(open_index(data)) == 10


def test_a_pipe_in_the_place_of_an_lmdb_is_refused_at_once(tmp_path: Path) -> None:
    from penstock.errors import FeedError
    from penstock.feed.index import open_index
    from penstock.feed.lmdb import open as open_lmdb

    os.mkfifo(tmp_path / "data.mdb")
    with pytest.raises(FeedError):
        open_index(tmp_path, kind="lmdb")
    with pytest.raises(FeedError):
        open_lmdb(os.fspath(tmp_path))
