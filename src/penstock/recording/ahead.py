"""Read mapped files and small files into memory ahead of the program: `penstock run --ahead`.

Starts the program of native/ahead beside the job and parses the output; loads nothing into the job.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.installed import native_part

__all__ = ["READING", "FileAhead", "ReadAhead"]

# environment variable of the job: the name of the socket, in the abstract name space, to which
# loaders send the order of their files; keep in step with adapters/torch.py
SOCKET = "PENSTOCK_AHEAD"

READING = "on"
ENDS_WITHIN_S = 5.0  # the program has nothing to wait for; a longer wait would delay the report
MOST_FILES = 200  # listed in run.json: the files with the most bytes read ahead


@dataclass(frozen=True, slots=True)
class FileAhead:
    """A mapped file, or a set of small files, read ahead.

    order: weights, in order, random, loader (the order was sent by a data loader) or off.
    read_bytes: read into memory before the program touched the bytes; hit_bytes: the part touched
    afterwards; touched_bytes: all bytes touched, in blocks of 64 KiB.  why: the reason of `off`.
    The path of a set ends in a slash; the size of a set is the number of files times their mean
    size.
    """

    order: str
    read_bytes: int
    hit_bytes: int
    touched_bytes: int
    size_bytes: int
    why: str
    path: str

    @classmethod
    def parse(cls, line: bytes) -> FileAhead | None:
        """Parse a line of native/ahead; return None if the line is damaged."""
        words = line.split(b"\t", 6)
        if len(words) < 7 or not all(word.isdigit() and len(word) < 19 for word in words[1:5]):
            return None
        order, why, path = (os.fsdecode(words[n]) for n in (0, 5, 6))
        read, hit, touched, size = map(int, words[1:5])
        return cls(order, read, hit, touched, size, why, path)

    def words(self) -> list[str | int]:
        """Return the entry of run.json."""
        numbers = (self.read_bytes, self.hit_bytes, self.touched_bytes, self.size_bytes)
        return [self.order, *numbers, self.why, self.path]


class ReadAhead:
    """Reads ahead for the children of this process while the context is open.

    limit_bytes: the most bytes read ahead and not yet touched by the program; the free memory is a
    further bound. 0: no reading ahead.  excluded: a folder with penstock's own files.  reason: why
    reading ahead is pointless from the start.  If reading ahead cannot start, the program runs
    without, and `facts` has the reason.
    """

    def __init__(self, limit_bytes: int, excluded: Path, reason: str = "") -> None:
        self.limit_bytes = limit_bytes
        self.state = reason or READING
        self.files: list[FileAhead] = []
        self._excluded = excluded
        self._process: subprocess.Popen[bytes] | None = None
        self._name = f"penstock-{secrets.token_hex(8)}"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variables of a job whose loaders send their order."""
        return {SOCKET: self._name} if self._process is not None else {}

    @property
    def facts(self) -> dict[str, Any]:
        """Return the entry of run.json."""
        ordered = sorted(self.files, key=lambda file: file.read_bytes, reverse=True)
        return {
            "state": self.state,
            "limit_bytes": self.limit_bytes,
            "files": [file.words() for file in ordered[:MOST_FILES]],
        }

    def __enter__(self) -> ReadAhead:
        if self.state != READING or not self.limit_bytes:
            return self
        command = [native_part("readahead"), str(os.getpid()), str(self.limit_bytes)]
        # Drop the recorder of an outer run: otherwise the recorder would count this program as part
        # of the job.
        environ = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as orders:
                orders.bind(f"\0{self._name}")
                self._process = subprocess.Popen(
                    [*command, os.fspath(self._excluded), str(orders.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environ,
                    pass_fds=[orders.fileno()],
                )
        except OSError as error:
            self.state = f"{command[0]}: {error.strerror}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        try:
            printed, _ = self._process.communicate(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=ENDS_WITHIN_S)
            self.state = "its process did not end"
            return
        if self._process.returncode:
            self.state = f"its process ended early, with status {self._process.returncode}"
        parsed = map(FileAhead.parse, printed.splitlines())
        self.files = [file for file in parsed if file is not None]
