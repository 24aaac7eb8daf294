"""Read a file forward by the lengths in the file.  Knows no format."""

from typing import BinaryIO

from penstock.save.check.foreign import Damage, Scope, Unended

__all__ = ["Stream", "Unfollowed", "unfollowed"]

BLOCK_BYTES = 256 << 10


class Unfollowed(Exception):  # noqa: N818 - a limit of the check, not a fault of the file
    """The reason why a check did not follow a file to the end."""


def unfollowed(name: str, scope: Scope, why: str) -> None:
    """Note that a file could not be checked, and why."""
    scope.unchecked[name] = None
    scope.remarks[f"{name}: not followed: {why}"] = None


class Stream:
    """A file read through one block; skipped bytes are not read.  Every length is compared with the
    file's size before use."""

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
        """Return the next bytes.  Raises Damage: beyond the end of the file."""
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
        """Return the next number.  Raises Damage: beyond the end of the file."""
        return int.from_bytes(self.take(n_bytes), "big" if order == "big" else "little")

    def back(self, n_bytes: int) -> None:
        """Go back by bytes that were just taken."""
        self.place -= n_bytes

    def skip(self, n_bytes: int) -> None:
        """Skip bytes.  Raises Damage: beyond the end of the file."""
        if n_bytes < 0 or self.place + n_bytes > self._size_bytes:
            raise self.cut()
        self.place += n_bytes
