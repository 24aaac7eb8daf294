"""A store behind an fsspec file system: objects, HTTP, memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import TierError
from penstock.places import tiers
from penstock.places.stores.store import (
    BLOCK_BYTES,
    PART,
    Store,
    StoredFile,
    Upload,
    checked,
    pieces,
    translated,
)

if TYPE_CHECKING:
    from penstock.places.stores.store import Source

__all__ = ["HttpStore", "MemoryStore", "ObjectStore", "RemoteStore", "move_in_store"]

# --- fsspec ---------------------------------------------------------------------------------------


class RemoteStore(Store):
    """The common part of all fsspec stores."""

    def __init__(self, url: str, fs: Any, root: str) -> None:
        self.url, self._fs, self._root = url, fs, root

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked(name)}"

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        for name, info in self._listed(prefix):
            yield found_of(name, info)

    def _listed(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        with translated(self.where(prefix), "listed"):
            self._fs.invalidate_cache()
            folder = self._path(prefix.strip("/")) if prefix else self._root
            try:
                files = self._fs.find(folder, detail=True)
            except FileNotFoundError:
                return
        start = len(self._root) + 1
        for path in sorted(files):
            name = path.lstrip("/") if not self._root.startswith("/") else path
            if files[path].get("type") != "directory" and not name.endswith(PART):
                yield name[start:], files[path]

    def stat(self, name: str) -> StoredFile | None:
        with translated(self.where(name), "seen"):
            try:
                info = self._fs.info(self._path(name))
            except FileNotFoundError:
                return None
        return found_of(name, info) if info.get("type") == "file" else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else offset + length
        if length == 0:
            return b""
        path = self._path(name)
        with translated(self.where(name), "read"):
            try:
                return bytes(self._fs.cat_file(path, start=offset or None, end=end))
            except Exception:  # S3 refuses a range from the end of the file
                if self._fs.info(path)["size"] <= offset:
                    return b""
                raise

    def delete(self, name: str) -> None:
        with translated(self.where(name), "removed"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))


def found_of(name: str, info: dict[str, Any]) -> StoredFile:
    size_bytes, mark = int(info["size"]), ""
    # S3, Azure, GCS, HTTP
    for key in ("ETag", "etag", "generation", "md5Hash", "content_md5", "Last-Modified"):
        mark = mark or str(info.get(key) or "").strip('"')
    for key in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value: Any = info.get(key)
        if hasattr(value, "timestamp"):
            return StoredFile(name, size_bytes, int(value.timestamp() * 1e9), mark)
        if isinstance(value, int | float):
            return StoredFile(name, size_bytes, int(value * 1e9), mark)
    return StoredFile(name, size_bytes, None, mark)


class ObjectStore(RemoteStore):
    """Objects appear whole when their upload ends: fsspec's files with a commit of their own."""

    durable = "the store has confirmed the whole object; how often it keeps it is its own affair"

    def put(self, name: str, source: Source) -> int:
        size = 0
        with translated(self.where(name), "written"):
            file = self._fs.open(self._path(name), "wb", autocommit=False)
            try:
                for data in pieces(source):
                    file.write(data)
                    size += len(data)
                file.close()
                file.commit()
            except BaseException:
                _discard(file)
                raise
        return size

    def move(self, name: str, to: str) -> None:
        move_in_store(self, self._fs, (self._path(name), self._path(to)), (name, to))

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        with translated(self.where(name), "written", size_bytes):
            file = self._fs.open(self._path(name), "wb", autocommit=False)
        return StreamUpload(self.where(name), size_bytes, piece_bytes, file)


def move_in_store(store: Store, fs: Any, paths: tuple[str, str], names: tuple[str, str]) -> None:
    """Copy an object within the store, compare the sizes, and remove the original.  Raises
    TierError."""
    before = store.stat(names[0])
    with translated(store.where(names[1]), "written"):
        fs.cp_file(*paths)
    after = store.stat(names[1])
    sizes = [file.size_bytes if file is not None else None for file in (before, after)]
    if sizes[0] != sizes[1]:
        raise TierError(f"{store.where(names[1])}: has {sizes[1]} bytes of {sizes[0]}")
    store.delete(names[0])


class HttpStore(ObjectStore):
    """Files of an HTTP server.  fsspec reports a server that refuses or does not answer as a
    missing file."""

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        names = [name for name, _ in self._listed(prefix)]
        if not names:
            with translated(self.where(prefix), "listed"):
                self._asked(self._path(prefix.strip("/")) if prefix else self._root)
        with ThreadPoolExecutor(tiers.ASKED_AT_ONCE) as pool:
            # A page of links has no facts about the files.
            yield from (file for file in pool.map(self.stat, names) if file is not None)

    def stat(self, name: str) -> StoredFile | None:
        with translated(self.where(name), "seen"):
            info = self._asked(self._path(name))
        if info is not None and info.get("size") is None:
            raise TierError(f"{self.where(name)}: the server tells no length of it")
        return found_of(name, info) if info and info.get("type") == "file" else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        if length is not None and len(data) > length:
            where = self.where(name)
            raise TierError(f"{where}: the server gives whole files only; copy it another way")
        return data

    def _asked(self, path: str) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._fs.info(path)
        except FileNotFoundError as error:
            answer = getattr(error.__cause__, "status", None)
            if answer in (404, 410) or error.__cause__ is None:
                return None
            raise
        return info


class StreamUpload(Upload):
    """An upload that starts from the beginning each time: the file system keeps nothing of an
    attempt."""

    def __init__(self, where: str, size_bytes: int, piece_bytes: int, file: Any) -> None:
        super().__init__(where, size_bytes, piece_bytes)
        self._file = file

    def holds(self, number: int, data: memoryview) -> bool:
        return False

    def write(self, number: int, data: memoryview) -> None:
        with translated(self.where, "written", len(data)):
            self._file.write(data)

    def finish(self) -> None:
        with translated(self.where, "written"):
            self._file.close()
            self._file.commit()
        self._file = None

    def close(self) -> None:
        if self._file is not None:
            _discard(self._file)
        self._file = None


def _discard(file: Any) -> None:
    with suppress(Exception):
        file.discard()
    # An unclosed file would go on writing when collected, and report a failure.
    with suppress(Exception):
        file.closed = True


class MemoryStore(RemoteStore):
    """For tests and for trying things out."""

    durable = "in the memory of this process: lost at its end"

    def put(self, name: str, source: Source) -> int:
        path = self._path(name)
        data = b"".join(pieces(source))
        self._fs.pipe_file(path, data)
        return len(data)

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        checked(name)
        return StreamUpload(self.where(name), size_bytes, piece_bytes, _Held(self, name))


class _Held:
    """Bytes on their way into memory, with the words of fsspec's files."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._data = store, name, bytearray()

    def write(self, data: memoryview) -> None:
        self._data += data

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def commit(self) -> None:
        self._store.put(self._name, bytes(self._data))

    def discard(self) -> None:
        self._data.clear()
