"""Staging from object stores and SFTP: real servers on loopback."""

import os
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("penstock.places.stores", reason="penstock.places.stores is not there")
from penstock.errors import TierError
from penstock.places import registry
from penstock.places.registry import Tier
from penstock.places.stores import Store, open_store
from penstock.stage import manifest, part
from penstock.stage.copy import copy
from penstock.stage.held import status, verify
from penstock.stage.manifest import TierPlace
from penstock.stage.source import find_in
from penstock.stage.work import CopyPace, Work
from remote import gs, gs_server, s3, s3_server, sftp_server

__all__ = ["gs", "gs_server", "s3", "s3_server", "sftp_server"]

FILES = {"a.bin": 10_000, "class1/b.bin": 2_500_000, "class1/empty": 0, "class2/c": 3}


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    (tmp_path / "tier").mkdir()
    return registry.add("fast", tmp_path / "tier")


@pytest.fixture(params=["s3", "gs", "sftp", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param in ("s3", "gs"):
        made: Store = request.getfixturevalue(request.param)
    elif request.param == "sftp":
        port, _ = request.getfixturevalue("sftp_server")
        url = f"sftp://me@127.0.0.1:{port}/{tmp_path.name}"
        made = open_store(url, password="-", host_key_policy="auto_add")
    else:
        pytest.importorskip("fsspec", reason="fsspec is not installed")
        made = open_store(f"memory://{tmp_path.name}")
    return made


def filled(store: Store) -> dict[str, bytes]:
    data = {name: os.urandom(size) for name, size in FILES.items()}
    for name, one in data.items():
        store.put(name, one)
    return data


def copies(tier: Tier, store: Store) -> dict[str, bytes]:
    place = TierPlace(tier)
    first = len(store.url.rstrip("/")) + 1
    return {
        entry.source[first:]: place.copy_path(entry).read_bytes()
        for entry in place.entries().values()
    }


def test_what_is_in_a_store_is_copied_checked_and_not_copied_again(
    store: Store, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", 1 << 20)
    data = filled(store)
    found = copy(tier, (), store=store, threads=2)
    assert (found.copied, found.skipped) == (4, {})
    assert "give the program that path" in found.notes[0]
    assert copies(tier, store) == data
    assert not verify(tier).corrupted
    assert copy(tier, (), store=store).was_there == 4
    store.put("a.bin", b"of another size")
    assert copy(tier, (), store=store).copied == 1
    assert copies(tier, store)["a.bin"] == b"of another size"
    assert (status(tier).orphans, status(tier).not_asked) == (0, 4)


def test_a_server_that_refuses_is_named_with_what_to_look_at(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    refusing = open_store("memory://bucket/train")

    def find(*told: Any, **more: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(refusing, "_fs", SimpleNamespace(find=find, invalidate_cache=lambda: None))
    with pytest.raises(
        TierError, match=r"memory://bucket/train: .*refused; nothing was copied: is"
    ):
        copy(tier, (), store=refusing)


@pytest.mark.parametrize("answer", [404, 403, 503, None])
def test_what_an_http_server_answered_is_said(tier: Tier, answer: int | None) -> None:
    pytest.importorskip("aiohttp", reason="fsspec's http:// needs it")

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer or 0)
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *told: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        if answer is None:
            server.server_close()
        else:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        store = open_store(f"http://127.0.0.1:{server.server_port}/train")
        if answer == 404:
            assert store.stat("a") is None
            with pytest.raises(TierError, match="holds no file"):
                copy(tier, (), store=store)
        else:
            said = str(answer or "Cannot connect|Connect call failed")
            with pytest.raises(TierError, match=rf"train/a: cannot be seen: .*({said})"):
                store.stat("a")
            with pytest.raises(TierError, match=rf"train/a: cannot be read: .*({said})"):
                store.read("a")
            with pytest.raises(TierError, match=rf"({said}).*; nothing was copied"):
                copy(tier, (), store=store)
        if answer is not None:
            server.shutdown()


def test_the_files_that_an_http_servers_page_links_to_are_copied_and_again_once_they_change(
    tmp_path: Path, tier: Tier
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec's http:// needs it")
    folder = tmp_path / "train"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"1111")
    (folder / "deep" / "b").write_bytes(b"22")

    class Quiet(SimpleHTTPRequestHandler):  # its pages tell no length, and its answers no ETag
        def log_message(self, *told: Any) -> None:
            pass

    answering = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = open_store(f"http://127.0.0.1:{server.server_port}/train")
        assert copy(tier, (), store=store).copied == 2
        assert copy(tier, (), store=store).was_there == 2
        (folder / "a").write_bytes(b"3333")
        os.utime(folder / "a", (1, 1))
        assert copy(tier, (), store=store).copied == 1
        (folder / "large").write_bytes(bytes(part.PIECE_BYTES + 1))
        with pytest.raises(TierError, match="large: the server gives whole files only"):
            copy(tier, (), store=store)
        server.shutdown()
    place = TierPlace(tier)
    held = {one.source[-1]: place.copy_path(one) for one in place.entries().values()}
    assert {name: one.read_bytes() for name, one in held.items()} == {"a": b"3333", "b": b"22"}
    assert not verify(tier).corrupted


def test_what_is_overwritten_within_a_tick_of_the_stores_clock_is_told_by_its_mark(
    tmp_path: Path, tier: Tier
) -> None:
    class Ticking:
        """Its clock stands, as it does for a second."""

        url, mark = "s3://bucket/x", "one"

        def list(self, prefix: str = "") -> Any:
            return iter([self.stat("a")])

        def stat(self, name: str) -> Any:
            return pytest.importorskip("penstock.places.stores").StoredFile(
                name, 3, 10**18, self.mark
            )

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            return self.mark.encode()

    store = Ticking()
    assert copy(tier, (), store=store).copied == 1  # type: ignore[arg-type]
    assert copy(tier, (), store=store).was_there == 1  # type: ignore[arg-type]
    store.mark = "two"
    assert copy(tier, (), store=store).copied == 1  # type: ignore[arg-type]
    (entry,) = TierPlace(tier).entries().values()
    assert TierPlace(tier).copy_path(entry).read_bytes() == b"two"


class Held:
    """A store that tells a version by its mark alone, as an http server without times does."""

    url = "s3://bucket/x"

    def __init__(self, files: dict[str, tuple[bytes, str]]) -> None:
        self.files = files

    def list(self, prefix: str = "") -> Any:
        return iter([self.stat(name) for name in self.files])

    def stat(self, name: str) -> Any:
        data, mark = self.files[name]
        return pytest.importorskip("penstock.places.stores").StoredFile(name, len(data), None, mark)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.files[name][0][offset : None if length is None else offset + length]


def test_a_large_file_that_changed_after_a_kill_is_copied_from_its_beginning(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "CHUNK_BYTES", 1 << 20)
    store: Any = Held({"large": (b"1" * (3 << 20), "one")})
    place = TierPlace(tier)
    place.make()
    (one,), _ = find_in(store, place)
    large = part.Large(Work(place, CopyPace(None), one.identity.size_bytes, None), one)
    for first in (large.begin() or [])[:2]:
        large.copy_chunk(first)
    large.part.close(is_kept=True)  # what a kill leaves
    store.files["large"] = (b"2" * (3 << 20), "two")
    assert copy(tier, (), store=store).copied == 1
    assert copies(tier, store) == {"large": b"2" * (3 << 20)}


def test_a_name_that_became_a_folder_in_a_store_and_one_again_is_copied(tier: Tier) -> None:
    store: Any = Held({"a": (b"1", "one"), "b": (b"b", "b")})
    copy(tier, (), store=store)
    for now in ({"a/c/d": (b"2", "two")}, {"a/c": (b"3", "three")}, {"a": (b"4", "four")}):
        store.files = {**now, "b": (b"b", "b")}
        assert copy(tier, (), store=store).skipped == {}
        assert copies(tier, store) == {name: one for name, (one, _) in store.files.items()}
        assert status(tier).strays == 0


def test_names_of_a_store_that_no_path_can_have_cost_those_files_alone(tier: Tier) -> None:
    odd = ["n" * 300, "a\0b", "\ud800", "x://y", "folder/" + "é" * 130]
    store: Any = Held(dict.fromkeys(odd, (b"odd", "one")))
    store.files |= {"x/y": (b"fine", "one"), "n" * 255: (b"long", "one")}
    found = copy(tier, (), store=store)
    assert (found.copied, found.skipped) == (2, {"a name that no path can have": 5})
    assert copies(tier, store) == {"x/y": b"fine", "n" * 255: b"long"}


def test_a_mark_is_what_a_store_tells_a_version_by() -> None:
    from penstock.places.stores import remote

    told = [{"size": 1, "ETag": '"ab"'}, {"size": 1, "etag": "ab", "mtime": 1.5}, {"size": 1}]
    assert [remote.found_of("a", one).mark for one in told] == ["ab", "ab", ""]


def test_a_store_without_files_says_so(tmp_path: Path, tier: Tier) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(TierError, match="holds no file"):
        copy(tier, (), store=open_store(f"memory://{tmp_path.name}-none"))


def test_a_name_that_others_have_as_their_folder_is_left_out(tier: Tier) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = open_store("memory://of-one-name")
    found = pytest.importorskip("penstock.places.stores").StoredFile

    class Both:
        url = store.url

        def list(self, prefix: str = "") -> Any:
            return iter([found("a", 1, None), found("a/b/c", 1, None), found("ab", 1, None)])

        def stat(self, name: str) -> Any:
            return found(name, 1, None)

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            return b"1"

    told = copy(tier, (), store=Both())  # type: ignore[arg-type]
    assert (told.copied, told.skipped) == (2, {"a name that others have as their folder": 1})
    assert not verify(tier).corrupted


def test_a_name_that_leaves_the_tier_is_left_out(tmp_path: Path, tier: Tier) -> None:
    class Hostile:
        url = "s3://bucket/x"

        def list(self, prefix: str = "") -> Any:
            found = pytest.importorskip("penstock.places.stores").StoredFile
            return iter([found("../../etc/passwd", 3, None), found("a//b", 3, None)])

    found = copy(tier, (), store=Hostile())  # type: ignore[arg-type]
    assert found.skipped == {"a name that no path can have": 2}
    assert not list(TierPlace(tier).copies.iterdir())
