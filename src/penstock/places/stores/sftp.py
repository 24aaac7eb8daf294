"""A store behind SFTP: drafts, renames, several readers on a connection."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import TierError
from penstock.places.stores.remote import RemoteStore
from penstock.places.stores.store import BLOCK_BYTES, PART, Upload, beside, pieces, translated

if TYPE_CHECKING:
    from penstock.places.stores.store import Source, StoredFile

__all__ = ["SftpStore"]

SFTP_READERS = 8  # OpenSSH allows ten channels per connection: 8 read, 1 lists, 1 writes


class SftpStore(RemoteStore):
    """A folder on another machine: temporary name, fsync where the server can, posix-rename."""

    durable = (
        "written on the server under another name, synced there if it knows fsync@openssh.com (as "
        "OpenSSH does), then renamed; the folder's own fsync is the server's affair"
    )
    can_rename = False  # of a folder onto an existing folder: never atomic on a server

    def __init__(self, url: str, fs: Any, root: str) -> None:
        super().__init__(url, fs, root)
        self._turn = threading.RLock()  # paramiko mixes up the answers to two threads
        self._room = threading.BoundedSemaphore(SFTP_READERS)
        self._idle: list[Any] = []  # idle channels for reading

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        with self._turn:
            return iter([*super().list(prefix)])

    def stat(self, name: str) -> StoredFile | None:
        with self._turn:
            return super().stat(name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read with several threads at once, each through a channel, with all requests under
        way."""
        with (
            translated(self.where(name), "read"),
            self._channel() as channel,
            channel.open(self._path(name), "rb") as file,
        ):
            left = max(0, file.stat().st_size - offset)
            wanted = left if length is None else min(left, length)
            return b"".join(file.readv([(offset, wanted)])) if wanted else b""

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self._room:
            try:
                channel = self._idle.pop()
            except IndexError:
                channel = self._fs.client.open_sftp()
            try:
                yield channel
            except BaseException:
                channel.close()  # answers may be on their way
                raise
            self._idle.append(channel)

    def delete(self, name: str) -> None:
        with self._turn:
            super().delete(name)

    def move(self, name: str, to: str) -> None:
        with self._turn, translated(self.where(to), "written"):
            self._fs.makedirs(self._path(to).rpartition("/")[0], exist_ok=True)
            self._fs.ftp.posix_rename(self._path(name), self._path(to))

    def put(self, name: str, source: Source) -> int:
        upload = self._upload(name, 0, BLOCK_BYTES, f".{uuid.uuid4().hex[:8]}")
        try:
            for data in pieces(source):
                upload.append(data)
                upload.size_bytes += len(data)
            upload.finish()
        except BaseException:
            upload.remove()
            raise
        return upload.size_bytes

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        return self._upload(name, size_bytes, piece_bytes, "")

    def _upload(self, name: str, size_bytes: int, piece_bytes: int, mark: str) -> _SftpUpload:
        folder, _, base = self._path(name).rpartition("/")
        with translated(self.where(name), "written", size_bytes):
            self._fs.makedirs(folder, exist_ok=True)
            return _SftpUpload(
                (self.where(name), size_bytes, piece_bytes),
                self._fs,
                f"{folder}/{beside(base, f'{mark}{PART}', '.')}",
                f"{folder}/{base}",
            )


class _SftpUpload(Upload):
    """An upload through a separate channel: paramiko loses answers to pipelined writes on a shared
    channel."""

    def __init__(self, facts: tuple[str, int, int], fs: Any, draft: str, path: str) -> None:
        super().__init__(*facts)
        self._ftp, self._draft, self._path = fs.ftp, draft, path
        self._held_bytes, self._place = 0, 0
        with suppress(FileNotFoundError):
            self._held_bytes = self._ftp.stat(draft).st_size
        self._channel = fs.client.open_sftp()
        self._file = self._channel.open(draft, "r+b" if self._held_bytes else "wb")
        self._file.set_pipelined(True)  # else each 32 KiB wait for the server's answer
        self._reading: Any = None

    def holds(self, number: int, data: memoryview) -> bool:
        start = number * self.piece_bytes
        if start + len(data) > self._held_bytes:
            return False
        with translated(self.where, "read"):
            if self._reading is None:
                self._reading = self._ftp.open(self._draft, "rb")
            self._reading.seek(start)
            return bool(self._reading.read(len(data)) == data)

    def write(self, number: int, data: memoryview) -> None:
        self._place = number * self.piece_bytes
        self.append(data)

    def append(self, data: memoryview) -> None:
        with translated(self.where, "written", len(data)):
            self._file.seek(self._place)
            self._file.write(bytes(data))
            self._place += len(data)

    def finish(self) -> None:
        with translated(self.where, "written"):
            self._file.flush()
            while self._file._reqs:  # answers to writes under way; the answers carry errors
                self._channel._read_response(self._file._reqs.popleft())
            if self._held_bytes > self.size_bytes:
                self._file.truncate(self.size_bytes)
            self._sync()
            self._file.close()
            arrived_bytes = self._ftp.stat(self._draft).st_size
            if arrived_bytes != self.size_bytes:
                raise TierError(
                    f"{self.where}: {arrived_bytes:,} of {self.size_bytes:,} bytes arrived"
                )
            self._ftp.posix_rename(self._draft, self._path)

    def _sync(self) -> None:
        """Sync by OpenSSH's extension: paramiko has no name for the extension."""
        from paramiko.sftp import CMD_EXTENDED

        with suppress(OSError):  # the server lacks the extension
            self._channel._request(CMD_EXTENDED, "fsync@openssh.com", self._file.handle)

    def remove(self) -> None:
        self.close()
        with suppress(Exception):
            self._ftp.remove(self._draft)

    def close(self) -> None:
        with suppress(Exception):
            if self._reading is not None:
                self._reading.close()
            self._file.close()
            self._channel.close()
