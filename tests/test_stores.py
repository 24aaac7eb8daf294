"""Stores against real servers on loopback: an S3 server (moto), one of Google Cloud Storage
(gcp-storage-emulator) and an SFTP server (asyncssh).

What is put is read back by another way than ours: the file system, boto, the server's own folder.
"""

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MissingDependency, TierError, TierFull
from penstock.places.stores import PART, LocalStore, Sparing, Store, open_store
from penstock.places.stores.remote import _discard
from penstock.places.tiers import evict
from remote import BUCKET, gs, gs_server, s3, s3_server, sftp_server

__all__ = ["gs", "gs_server", "s3", "s3_server", "sftp_server"]

PIECE = 4 << 20


class StoreContract:
    """What every store promises."""

    def test_what_was_put_is_read_back_whole_and_in_parts(self, store: Store) -> None:
        data = os.urandom(100_003)
        assert store.put("a/b/file.bin", data) == len(data)
        assert store.read("a/b/file.bin") == data
        assert store.read("a/b/file.bin", 1000, 5000) == data[1000:6000]
        assert store.read("a/b/file.bin", 100_000, 50) == data[100_000:]
        with store.open("a/b/file.bin") as file:
            file.seek(-10, os.SEEK_END)
            assert file.read() == data[-10:]

    def test_a_put_takes_bytes_paths_files_and_iterables(
        self, store: Store, tmp_path: Path
    ) -> None:
        data = os.urandom(9 << 20)
        path = tmp_path / "source"
        path.write_bytes(data)
        store.put("path", path)
        with path.open("rb") as file:
            store.put("file", file)
        store.put("blocks", (data[at : at + 1_000_000] for at in range(0, len(data), 1_000_000)))
        store.put("empty", b"")
        wanted = hashlib.sha256(data).digest()
        for name in ("path", "file", "blocks"):
            assert hashlib.sha256(store.read(name)).digest() == wanted
        assert store.stat("empty").size_bytes == 0
        assert store.read("empty") == b""

    def test_files_are_listed_at_any_depth_with_their_sizes(self, store: Store) -> None:
        for name in ("one", "a/two", "a/b/three", "ab/four"):
            store.put(name, name.encode())
        assert {found.name: found.size_bytes for found in store.list()} == {
            "one": 3, "a/two": 5, "a/b/three": 9, "ab/four": 7,
        }  # fmt: skip
        assert sorted(found.name for found in store.list("a")) == ["a/b/three", "a/two"]
        assert list(store.list("nowhere")) == []

    def test_a_put_that_fails_leaves_what_was_there(self, store: Store) -> None:
        store.put("model", b"old")

        def broken() -> Iterator[bytes]:
            yield b"n" * (6 << 20)
            raise ZeroDivisionError

        with pytest.raises((ZeroDivisionError, TierError)):
            store.put("model", broken())
        assert store.read("model") == b"old"
        assert [found.name for found in store.list()] == ["model"]

    def test_a_file_goes_and_may_be_gone_already(self, store: Store) -> None:
        store.put("x/y", b"1")
        store.delete("x/y")
        store.delete("x/y")
        assert store.stat("x/y") is None
        assert list(store.list()) == []

    def test_an_upload_is_seen_only_when_it_is_finished(self, store: Store) -> None:
        data = os.urandom(3 * PIECE + 77)
        upload = store.upload("big", len(data), PIECE)
        count = -(-len(data) // upload.piece_bytes)
        for number in range(count):
            assert store.stat("big") is None
            start = number * upload.piece_bytes
            upload.write(number, memoryview(data)[start : start + upload.piece_bytes])
        upload.finish()
        upload.close()
        assert store.read("big") == data

    def test_names_that_leave_the_store_are_refused(self, store: Store) -> None:
        for name in ("../x", "a/../../x", "/etc/passwd", "", "a//b", "a/", "a\0b", "./a"):
            with pytest.raises(TierError):
                store.put(name, b"")

    def test_it_says_what_durable_means(self, store: Store) -> None:
        assert len(store.durable.split()) > 4


class ResumableContract(StoreContract):
    """Where an upload can be taken up again by another process."""

    def test_an_upload_that_ended_early_is_taken_up_where_it_was(self, store: Store) -> None:
        data = os.urandom(5 * PIECE + 5)
        first = store.upload("big", len(data), PIECE)
        pieces = [
            memoryview(data)[start : start + first.piece_bytes]
            for start in range(0, len(data), first.piece_bytes)
        ]
        first.write(0, pieces[0])
        first.close()
        assert store.stat("big") is None
        assert list(store.list()) == []

        again = store.upload("big", len(data), PIECE)
        assert again.holds(0, pieces[0])
        assert not again.holds(0, memoryview(b"x" * len(pieces[0])))
        for number, piece in enumerate(pieces[1:], 1):
            assert not again.holds(number, piece)
            again.write(number, piece)
        again.finish()
        again.close()
        assert store.read("big") == data

    @pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
    def test_an_upload_of_a_file_of_another_size_has_nothing_of_the_one_before(
        self, store: Store, before: int, after: int
    ) -> None:
        for n_pieces, is_finished in ((before, False), (after, True)):
            least = store.upload("big", 1 << 30, PIECE)  # what a piece is at least
            n_piece = least.piece_bytes
            least.close()
            data = os.urandom(n_pieces * n_piece + 5)
            upload = store.upload("big", len(data), PIECE)
            for number in range(n_pieces + 1):
                piece = memoryview(data)[number * n_piece : (number + 1) * n_piece]
                if not upload.holds(number, piece):
                    upload.write(number, piece)
            if is_finished:
                upload.finish()
            upload.close()
        assert store.read("big") == data


class TestLocalStore(ResumableContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "tier" / "below")


class TestS3(ResumableContract):
    @pytest.fixture
    def store(self, s3: Store) -> Store:
        return s3


class TestGs(StoreContract):
    @pytest.fixture
    def store(self, gs: Store) -> Store:
        return gs

    def test_what_was_discarded_writes_nothing_when_it_is_collected(self, store: Store) -> None:
        file = store._fs.open(store._path("model"), "wb", autocommit=False)
        file.write(b"1" * 1000)
        _discard(file)
        assert file.closed


class TestSftp(ResumableContract):
    @pytest.fixture
    def store(self, sftp_server: tuple[int, Path], tmp_path: Path) -> Store:
        return open_store(
            f"sftp://me@127.0.0.1:{sftp_server[0]}/{tmp_path.name}",
            password="-",
            host_key_policy="auto_add",
        )


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        pytest.importorskip("fsspec", reason="fsspec is not installed")
        return open_store(f"memory://{tmp_path.name}")


def test_an_error_without_words_is_told_by_its_name() -> None:
    from penstock.places.stores.store import reason_of as _said

    assert _said(NotImplementedError()) == "NotImplementedError"
    assert _said(OSError(2, "gone")) == "gone"


def test_what_lies_in_s3_is_what_boto_finds(s3: Store, s3_server: str, tmp_path: Path) -> None:
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    data = os.urandom(13 << 20)
    s3.put("run/model.pt", data)
    client = boto3.client(
        "s3", endpoint_url=s3_server, aws_access_key_id="a", aws_secret_access_key="b",
        region_name="us-east-1",
    )  # fmt: skip
    found = client.get_object(Bucket=BUCKET, Key=f"{tmp_path.name}/run/model.pt")
    assert found["Body"].read() == data
    assert not client.list_multipart_uploads(Bucket=BUCKET).get("Uploads")


def test_what_lies_behind_sftp_is_a_plain_file(sftp_server: tuple[int, Path]) -> None:
    port, root = sftp_server
    store = open_store(
        f"sftp://me@127.0.0.1:{port}/plain", password="-", host_key_policy="auto_add"
    )
    store.put("a/model.pt", b"12345")
    assert (root / "plain" / "a" / "model.pt").read_bytes() == b"12345"
    assert [path.name for path in (root / "plain" / "a").iterdir()] == ["model.pt"]


def test_a_server_whose_key_nobody_knows_gets_nothing(
    sftp_server: tuple[int, Path], monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    with pytest.raises(TierError, match="known_hosts"):
        open_store(f"sftp://me@127.0.0.1:{sftp_server[0]}/x", password="-")


def test_a_local_put_is_synced_before_it_gets_its_name(tmp_path: Path) -> None:
    if not _strace_works():
        pytest.skip("strace is missing or may not trace here: make setup-system")
    program = "import sys; from penstock.places.stores import LocalStore; " + (
        "LocalStore(sys.argv[1]).put('model', b'x' * 100)"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", trace, "-e", "trace=fsync,rename,renameat,renameat2,pwrite64"]
    subprocess.run([*command, sys.executable, "-c", program, tmp_path / "tier"], check=True)
    calls = [line.split()[1].partition("(")[0] for line in trace.read_text().splitlines()]
    calls = [call for call in calls if call in ("fsync", "rename", "pwrite64")]
    assert calls[-4:] == ["pwrite64", "fsync", "rename", "fsync"]


def _strace_works() -> bool:
    try:
        return subprocess.run(["strace", "-o", "/dev/null", "true"]).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_tier_says_where_and_how_much(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="/dev/null/tier"):
        LocalStore("/dev/null/tier").put("x", b"")
    if os.geteuid() != 0 or not _mounted(tmp_path / "small"):
        pytest.skip("a small tmpfs can be mounted by root only")
    try:
        store = LocalStore(tmp_path / "small")
        store.put("old", bytes(300_000))
        with pytest.raises(TierFull, match="no room for") as caught:
            store.put("new", bytes(2 << 20))
        assert caught.value.path.endswith("/new")
        assert caught.value.wanted_bytes > 0
        assert [found.name for found in store.list()] == ["old"]
        assert os.listdir(tmp_path / "small") == ["old"]
        upload = store.upload("big", 2 << 20, 1 << 20)
        with pytest.raises(TierFull):
            upload.write(0, memoryview(bytes(1 << 20)))
        upload.close()
        assert store.sweep() > 0
        assert os.listdir(tmp_path / "small") == ["old"]
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)


def _mounted(folder: Path) -> bool:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(("number", "is_gone"), [(5, False), (2, True), (40, True)])
def test_a_file_that_cannot_be_seen_is_not_taken_for_none(
    tmp_path: Path, number: int, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        name = "model.pt"

        def is_dir(self, follow_symlinks: bool = True) -> bool:
            return False

        def is_file(self) -> bool:
            return True

        def stat(self) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "scandir", lambda folder: nullcontext([Entry()]))
    if is_gone:
        assert list(LocalStore(tmp_path).list()) == []
    else:
        with pytest.raises(TierError, match=r"model\.pt: cannot be seen: Input/output error"):
            list(LocalStore(tmp_path).list())


def test_a_killed_put_leaves_the_old_file_and_a_name_that_is_swept(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from penstock.places.stores import LocalStore
        def data():
            yield b"n" * 5_000_000
            os.kill(os.getpid(), signal.SIGKILL)
        store = LocalStore(sys.argv[1])
        store.put("model", b"old")
        store.put("model", data())
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program), tmp_path / "tier"])
    assert ended.returncode == -signal.SIGKILL
    store = LocalStore(tmp_path / "tier")
    assert store.read("model") == b"old"
    assert [found.name for found in store.list()] == ["model"]
    assert sum(name.endswith(PART) for name in os.listdir(tmp_path / "tier")) == 1
    assert store.sweep() == 5_000_000
    assert os.listdir(tmp_path / "tier") == ["model"]


def test_odd_sizes_pass_the_page_cache_or_not_and_stay_themselves(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for size in (0, 1, 4095, 4096, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 4097):
        data = os.urandom(size)
        upload = store.upload("file", size, PIECE)
        for number, start in enumerate(range(0, size, PIECE)):
            upload.write(number, memoryview(data)[start : start + PIECE])
        upload.finish()
        upload.close()
        assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_is_read_sparingly_is_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    data = os.urandom(2 * PIECE + 4097)
    path = tmp_path / "file"
    path.write_bytes(data)
    evict(path)
    file, block = Sparing(path), Sparing.block(PIECE)
    if is_refused:  # a disk of larger sectors
        plain = os.preadv

        def preadv(descriptor: int, buffers: Any, offset: int) -> int:
            if descriptor != file.number:
                raise OSError(errno.EINVAL, "")
            return plain(descriptor, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
    for start in (0, 1, 4096, PIECE, PIECE + 5, 2 * PIECE, 2 * PIECE + 4096, len(data)):
        for length in (0, 1, 4095, 4096, 4097, PIECE - 1, PIECE):
            assert file.read(block, start, length) == data[start : start + length]
    file.close()


@given(name=st.text(max_size=40))
def test_no_name_leads_out_of_a_folder(name: str) -> None:
    store = LocalStore("/somewhere/tier")
    try:
        path = store.path(name)
    except TierError:
        return
    assert os.path.normpath(path) == os.fspath(path)
    assert os.fspath(path).startswith("/somewhere/tier")


def test_urls_that_cannot_be_are_refused_in_a_sentence(monkeypatch: Any) -> None:
    with pytest.raises((TierError, MissingDependency), match="nonsense"):
        open_store("nonsense://x/y")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependency, match=r"penstock\[remote\]"):
        open_store("s3://bucket/run")


def test_a_tier_that_may_not_grow_says_so(tmp_path: Path) -> None:
    program = f"""
        import resource, signal, sys
        from penstock.errors import TierError
        from penstock.places.stores import LocalStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))
        try:
            LocalStore(sys.argv[1]).put("model", bytes(1_000_000))
        except TierError as error:
            print(error)
    """
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path / "tier"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "model: cannot be written: File too large" in finished.stdout
    assert os.listdir(tmp_path / "tier") == []


# --- S3's own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 12 << 20])
@pytest.mark.parametrize("method", ["put_object", "upload_part", "head_object"])
def test_an_etag_of_other_bytes_is_an_error(
    s3: Store, method: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: Any = s3.call  # type: ignore[attr-defined]
    met = []

    def wrong(name: str, **given: Any) -> Any:
        answer = call(name, **given)
        if name == method:
            met.append(name)
            answer = {**answer, "ETag": f'"{7:032x}"'}
        return answer

    monkeypatch.setattr(s3, "call", wrong)
    data = os.urandom(size)
    upload = s3.upload("one", size, PIECE)
    with (
        pytest.raises(TierError, match="other bytes than were sent")
        if (method == "head_object" or (method == "upload_part") == (size > 100))
        else nullcontext()
    ):
        for number, start in enumerate(range(0, size, upload.piece_bytes)):
            upload.write(number, memoryview(data)[start : start + upload.piece_bytes])
        upload.finish()
    upload.close()


def test_an_etag_under_a_key_of_its_own_says_nothing(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: Any = s3.call  # type: ignore[attr-defined]

    def encrypted(name: str, **given: Any) -> Any:
        answer = call(name, **given)
        is_write = name in ("put_object", "head_object")
        more = {"ServerSideEncryption": "aws:kms", "ETag": f'"{7:032x}"'} if is_write else {}
        return {**answer, **more}

    monkeypatch.setattr(s3, "call", encrypted)
    upload = s3.upload("one", 3, PIECE)
    upload.write(0, memoryview(b"abc"))
    upload.finish()
    assert s3.read("one") == b"abc"


def test_uploads_that_nobody_ends_are_ended(s3: Store) -> None:
    begun: Any = s3.begun  # type: ignore[attr-defined]
    for name in ("gone", "gone", "owed"):
        upload = s3.upload(name, 12 << 20, PIECE)
        upload.write(0, memoryview(bytes(upload.piece_bytes)))
        upload.close()
    folder = s3.url.rpartition("/")[2]
    assert len(list(begun(folder))) == 2  # of one name an older one is ended by the next
    assert s3.end_uploads({"owed"}, 1e12) == 0
    assert s3.end_uploads({"owed"}, -1) == 1
    assert [one["Key"].rpartition("/")[2] for one in begun(folder)] == ["owed"]
