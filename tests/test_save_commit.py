"""The manifest and the commit: what counts, what survives a kill, what a stranger's file can do."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import LocalStore
from penstock.save import commit as committing
from penstock.save.commit import STATE, abort, begin, claim, commit, join, sweep
from penstock.save.find.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE, FileSum, Manifest, Summing, parse, to_json
from penstock.save.verify import latest_valid, verify


def saved(root: Path, step: int, data: bytes = b"weights") -> Path:
    part = begin(root, step)
    part.write("model.pt", [data])
    return commit(part)


# The manifest


MANIFEST = Manifest(
    (FileSum("a/model.pt", CHUNK_BYTES + 1, bytes(range(16))), FileSum("empty", 0, b"")),
    step=7, world_size=4, kind="dcp", metrics={"loss": 0.25}, created_unix_ns=5, source="content:x",
)  # fmt: skip


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert parse(to_json(MANIFEST), "here") == MANIFEST


def test_a_sum_is_what_the_xxhash_program_says_of_each_four_mebibytes() -> None:
    xxhash = pytest.importorskip("xxhash", reason="xxhash is not installed")
    data = os.urandom(CHUNK_BYTES + 12345)
    summing = Summing()
    for start in range(0, len(data), 1_000_003):
        summing.add(data[start : start + 1_000_003])
    made = summing.end("x")
    assert made.size_bytes == len(data)
    wanted = [xxhash.xxh3_64_hexdigest(data[:CHUNK_BYTES])]
    wanted.append(xxhash.xxh3_64_hexdigest(data[CHUNK_BYTES:]))
    assert made.sums.hex() == "".join(wanted)


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_manifest_is_found(place: int, bit: int) -> None:
    data = bytearray(to_json(MANIFEST))
    place %= len(data)
    data[place] ^= 1 << bit
    try:
        found = parse(bytes(data), "here")
    except SaveError:
        return
    assert found == MANIFEST  # blanks between two words may be others


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 10**6))
def test_a_cut_manifest_is_found(cut: int) -> None:
    data = to_json(MANIFEST)
    with pytest.raises(SaveError):
        parse(data[: cut % (len(data) - 2)], "here")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(key=st.sampled_from(["files", "step", "world_size", "metrics", "chunk_bytes", "kind"]),
       value=JSON)  # fmt: skip
def test_a_manifest_of_a_stranger_is_read_or_refused(key: str, value: object) -> None:
    """Sealed as ours are, so that every check behind the seal is reached."""
    from penstock.save import manifest

    body = json.loads(to_json(MANIFEST))
    del body["seal"]
    body[key] = value
    try:
        body["seal"] = manifest._seal(body)
        data = json.dumps(body).encode() + b"\n"
    except ValueError:
        return
    with contextlib.suppress(SaveError):
        assert isinstance(parse(data, "here"), Manifest)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", "a\0b", "a//b", INSIDE])
def test_a_manifest_may_not_name_what_lies_elsewhere(name: str) -> None:
    data = to_json(Manifest((FileSum(name, 0, b""),)))
    with pytest.raises(SaveError, match="may not be named"):
        parse(data, "here")


def test_a_manifest_of_no_files_vouches_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / INSIDE).write_bytes(to_json(Manifest(())))
    [found] = find(LocalStore(tmp_path))
    assert (found.is_broken, found.problem) == (True, "its manifest names no files")


def test_a_newer_format_is_refused_in_a_sentence() -> None:
    body = json.loads(to_json(MANIFEST)) | {"penstock": 2}
    with pytest.raises(SaveError, match="written by format 2, newest known here is 1; upgrade"):
        parse(json.dumps(body).encode(), "here")


def test_deep_and_huge_json_ends_in_a_sentence() -> None:
    for data in (b"[" * 200_000, b'{"penstock": 1' + b"0" * 5000 + b"}", b"\xff\xfe", b"null"):
        with pytest.raises(SaveError):
            parse(data, "here")


# The commit


def test_a_committed_checkpoint_lies_as_plain_files_with_a_manifest_beside(tmp_path: Path) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 99)
    part = begin(tmp_path, 1000)
    part.write("model.pt", [data[:1000], memoryview(data)[1000:]])
    (part.path / "deep" / "er").mkdir(parents=True)
    (part.path / "deep" / "er" / "state.json").write_text("{}")
    path = commit(part, world_size=2, metrics={"loss": 0.5})
    assert path == tmp_path / "step-00001000"
    assert (
        hashlib.sha256((path / "model.pt").read_bytes()).digest() == hashlib.sha256(data).digest()
    )
    assert sorted(os.listdir(path)) == ["deep", "model.pt", INSIDE]
    (one,) = find(LocalStore(tmp_path))
    assert (one.step, one.manifest.world_size, one.manifest.metrics) == (1000, 2, {"loss": 0.5})
    assert verify(one, "full").is_whole
    assert verify(one, "full").checked_bytes == len(data) + 2


def test_what_is_not_committed_does_not_count(tmp_path: Path) -> None:
    old = saved(tmp_path, 1)
    part = begin(tmp_path, 2)
    part.write("model.pt", [b"new"])
    assert latest_valid(tmp_path).path == old
    abort(part)
    assert latest_valid(tmp_path).path == old
    assert not part.path.exists()


def test_the_order_is_files_manifest_folders_rename_parent(tmp_path: Path) -> None:
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace is missing or may not trace here: make setup-system")
    program = """
        import sys
        from penstock.save.commit import begin, commit
        part = begin(sys.argv[1], 1)
        part.write("model.pt", [b"x" * 5_000_000])
        (part.path / "more").write_text("by another program")
        commit(part)
    """
    trace, tier = tmp_path / "trace", tmp_path / "tier"
    command = ["strace", "-f", "-y", "-o", trace, "-e", "trace=fsync,rename,write,pwrite64"]
    program = textwrap.dedent(program)
    subprocess.run([*command, sys.executable, "-c", program, tier], check=True)
    seen = []
    for line in trace.read_text().splitlines():
        if str(tier) in line:
            call = line.split(maxsplit=1)[1]
            seen.append((call.partition("(")[0], call))
    part = f"{tier}/step-00000001.part"
    order = [
        next(n for n, (call, line) in enumerate(seen) if call == wanted and what in line)
        for wanted, what in (
            ("fsync", f"{part}/.model.pt"), ("fsync", f"{part}/more>"),
            ("write", f"{part}/{INSIDE}"), ("fsync", f"{part}/{INSIDE}>"),
        )
    ]  # fmt: skip
    folder = max(n for n, (call, line) in enumerate(seen) if call == "fsync" and f"{part}>" in line)
    rename = next(
        n for n, (call, line) in enumerate(seen) if call == "rename" and f'rename("{part}"' in line
    )
    parent = max(n for n, (call, line) in enumerate(seen) if call == "fsync" and f"{tier}>" in line)
    assert [*order, folder, rename, parent] == sorted([*order, folder, rename, parent])


def test_a_committed_name_is_never_written_again(tmp_path: Path) -> None:
    first = saved(tmp_path, 5, b"first")
    second = saved(tmp_path, 5, b"second")
    assert (first / "model.pt").read_bytes() == b"first"
    assert second.name == "step-00000005.2"
    assert latest_valid(tmp_path).path == second
    assert latest_valid(tmp_path).step == 5


def test_many_ranks_write_one_part_and_hand_in_what_they_wrote(tmp_path: Path) -> None:
    first = begin(tmp_path, 3)
    for rank in range(3):
        part = join(tmp_path, first.name, 3)
        part.write(f"rank-{rank}.pt", [bytes([rank]) * 1000])
        part.hand_in()
    path = commit(first, world_size=3)
    assert sorted(os.listdir(path)) == [INSIDE, "rank-0.pt", "rank-1.pt", "rank-2.pt"]
    assert verify(find(LocalStore(tmp_path))[0], "full").is_whole
    with pytest.raises(SaveError, match="not begun"):
        join(tmp_path, "step-00000099", 99)


def test_links_unfinished_files_and_nothing_are_no_checkpoint(tmp_path: Path) -> None:
    part = begin(tmp_path, 1)
    with pytest.raises(SaveError, match="nothing was written"):
        commit(part)
    (part.path / "link").symlink_to("/etc/passwd")
    with pytest.raises(SaveError, match="a link"):
        commit(part)
    (part.path / "link").unlink()
    (part.path / ".model.pt.penstock-part").write_text("half")
    with pytest.raises(SaveError, match="not finished"):
        commit(part)
    assert find(LocalStore(tmp_path)) == []


def test_what_crashes_leave_is_swept_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    kept = saved(tmp_path, 1)
    begin(tmp_path, 2).write("model.pt", [bytes(5000)])
    theirs = tmp_path / "theirs.part"
    theirs.mkdir()
    (theirs / "file").write_text("not ours")
    trash = tmp_path / committing.STATE / "trash" / "x"
    trash.mkdir(parents=True)
    (trash / "old").write_bytes(bytes(3000))
    empty = tmp_path / "empty.part"
    empty.mkdir()
    assert sweep(tmp_path) >= 8000
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        ".penstock", "empty.part", kept.name, "theirs.part",
    ]  # fmt: skip
    (tmp_path / "step-00000003.part").mkdir()
    assert saved(tmp_path, 3).name == "step-00000003.2"
    assert (tmp_path / "step-00000003.part").exists()


def test_a_part_that_is_being_written_is_swept_by_nobody(tmp_path: Path) -> None:
    part = begin(tmp_path, 1)
    part.write("model.pt", [bytes(5000)])
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        assert sweep(tmp_path) == 0
        with pytest.raises(SaveError, match="another process writes this checkpoint now"):
            begin(tmp_path, 1)
        assert verify(find(LocalStore(commit(part).parent))[0]).is_whole
        begin(tmp_path, 2).write("model.pt", [bytes(5000)])  # and nobody has it any more
        assert sweep(tmp_path) >= 5000
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_two_jobs_in_one_folder_are_refused(tmp_path: Path) -> None:
    program = """
        import sys, time
        from penstock.save.commit import claim
        taken = claim(sys.argv[1], "job")
        print("taken", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"taken\n"
        with pytest.raises(SaveError, match=f"another job has this folder .pid {other.pid} on"):
            claim(tmp_path, "job")
        claim(tmp_path, "drain").close()
        other.kill()
    claim(tmp_path, "job").close()


def test_missing_and_read_only_tiers_are_named(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="/proc"):
        begin("/proc/no/such", 1)
    with pytest.raises(SaveError, match="no name"):
        begin(tmp_path, None)
    with pytest.raises(SaveError, match="no name"):
        begin(tmp_path, 1, name="../x")


def test_a_full_tier_leaves_the_old_one_and_nothing_of_the_new(tmp_path: Path) -> None:
    """At many sizes, so that it is full in the data, in the manifest and in between."""
    tier = tmp_path / "tier"
    tier.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tier]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs can be mounted by root only")
    try:
        saved(tier, 1, b"1" * 100_000)
        n_full = 0
        for size in range(860_000, 960_000, 4096):
            path, full = None, None
            try:
                path = saved(tier, 2, bytes(size))
            except TierFull as error:  # and not the error itself: the part lives as long
                full = error.path, str(error)
            if full is not None:
                assert str(tier) in full[0]
                assert "no room" in full[1]
                n_full += 1
                sweep(tier)
                assert latest_valid(tier, level="full").step == 1
                assert sorted(os.listdir(tier)) == [".penstock", "step-00000001"]
            else:
                assert latest_valid(tier, level="full").path == path
                committing.discard(path, tier)
        assert 3 <= n_full < 24
    finally:
        subprocess.run(["umount", tier], check=True)


def test_a_kill_at_any_call_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    """Ends the process at its n-th rename, fsync, write or unlink, for every n there is."""
    program = """
        import os, signal, sys
        from penstock.save.commit import begin, commit
        left = int(sys.argv[2])
        def deadly(real):
            def call(*args, **kwargs):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)
            return call
        for name in ("rename", "fsync", "pwrite", "unlink", "mkdir", "ftruncate"):
            setattr(os, name, deadly(getattr(os, name)))
        part = begin(sys.argv[1], 2)
        part.write("model.pt", [b"2" * 10_000])
        commit(part)
        print("durable", flush=True)
    """
    ends = []
    for n in range(1, 60):
        tier = tmp_path / str(n)
        saved(tier, 1, b"1" * 10_000)
        command = [sys.executable, "-c", textwrap.dedent(program), tier, str(n)]
        finished = subprocess.run(command, capture_output=True, text=True)
        choice = latest_valid(tier, level="full")
        assert choice.step in (1, 2)
        assert choice.step == 2 or finished.stdout == ""
        assert (choice.path / "model.pt").read_bytes() == b"%d" % choice.step * 10_000
        sweep(tier)
        assert {one.name for one in tier.iterdir()} <= {
            ".penstock", "step-00000001", "step-00000002",
        }  # fmt: skip
        ends.append(finished.returncode)
        if finished.returncode == 0:
            break
    assert ends.count(-signal.SIGKILL) >= 8
    assert ends[-1] == 0


@pytest.mark.parametrize("what", ["trash", "part", "draft"])
def test_what_cannot_be_swept_keeps_nothing_else(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = begin(tmp_path, 1)
    part.write("model.pt", [b"x" * 5000])
    part._lock.close()
    trash = tmp_path / STATE / "trash" / "gone"
    trash.mkdir()
    draft = tmp_path / ".last.ckpt.penstock-part"
    draft.write_bytes(b"y" * 3000)
    bad = {"trash": trash, "part": part.path, "draft": draft}[what]

    def shaky(true: Any) -> Any:
        def fails(path: Any, *given: Any, **named: Any) -> Any:
            if Path(path) == bad:
                raise OSError(5, os.strerror(5), str(path))
            return true(path, *given, **named)

        return fails

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", shaky(shutil.rmtree))
        for one in ("rename", "unlink"):
            patch.setattr(Path, one, shaky(getattr(Path, one)))
        sweep(tmp_path)
    assert [one for one in (trash, part.path, draft) if one.exists()] == [bad]
    sweep(tmp_path)
    assert not bad.exists()


def test_a_file_that_changed_after_it_was_summed_is_summed_again(tmp_path: Path) -> None:
    """A program may append to a file of the part: the manifest tells of the file as it is."""
    part = begin(tmp_path, 4)
    part.write("model.pt", [b"weights"])
    with (part.path / "model.pt").open("ab") as file:
        file.write(b" and more")
    path = commit(part)
    (found,) = parse((path / INSIDE).read_bytes(), "manifest").files
    assert found.size_bytes == len(b"weights and more")
    assert verify(find(LocalStore(tmp_path))[0], "full").is_whole
