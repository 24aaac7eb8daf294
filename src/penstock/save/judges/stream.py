"""A file that is read forward by the lengths in it.  Knows no format."""

from typing import BinaryIO

from penstock.save.foreign import Damage, Scope, Unended

__all__ = ["Stream", "Unfollowed", "unfollowed"]

BLOCK_BYTES = 256 << 10


class Unfollowed(Exception):  # noqa: N818 - says nothing against the file
    """Why a file was not followed to its end."""


def unfollowed(name: str, scope: Scope, why: str) -> None:
    """Note that nothing can be said of a file, and why."""
    scope.unchecked[name] = None
    scope.remarks[f"{name}: not followed: {why}"] = None


class Stream:
    """Reads through one block; what is skipped is not read.  Every length is held against the
    file's size before it is used."""

    def __init__(self, file: BinaryIO, name: str, what: str, start: int, size_bytes: int) -> None:
        self._file, self.name, self._what, self._size_bytes = file, name, what, size_bytes
        self._block, self._start, self.place = b"", start, start

    def damage(self, why: str) -> Damage:
        return Damage(f"{self.name}: {self._what}: {why}")

    def cut(self) -> Damage:
        return Unended(
            f"{self.name}: {self._what}: no end in {self._size_bytes:,} bytes: cut short"
        )

    @property
    def left_bytes(self) -> int:
        return self._size_bytes - self.place

    def take(self, n_bytes: int) -> bytes:
        """Raises Damage: not in the file."""
        if self.place + n_bytes > self._size_bytes:
            raise self.cut()
        at = self.place - self._start
        if at < 0 or at + n_bytes > len(self._block):
            self._file.seek(self.place)
            self._block, self._start, at = self._file.read(BLOCK_BYTES + n_bytes), self.place, 0
            if len(self._block) < n_bytes:
                raise self.cut()
        self.place += n_bytes
        return self._block[at : at + n_bytes]

    def number(self, n_bytes: int, order: str = "little") -> int:
        """Raises Damage: not in the file."""
        return int.from_bytes(self.take(n_bytes), "big" if order == "big" else "little")

    def skip(self, n_bytes: int) -> None:
        """Raises Damage: not in the file."""
        if n_bytes < 0 or self.place + n_bytes > self._size_bytes:
            raise self.cut()
        self.place += n_bytes
