"""The process that writes snapshots to disk, and the training's connection to that process.

    training                          writer (python -m penstock.save.training.writer DESCRIPTOR)
    Writer.begin(job, arena) ───────► write the files out of the arena, commit
    Writer.finished() ◄────────────── the result of the job

The two processes share one socket: a job is a line of JSON, followed by the pickle and accompanied
by the arena's descriptor.  The writer unpickles nothing and imports no framework.  When the
training ends, by whatever means, the writer finishes the jobs received and ends too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, SaveError
from penstock.installed import with_package

if TYPE_CHECKING:
    from penstock.save.training.arena import Arena

__all__ = ["Writer", "WriterJob", "WriterResult", "main"]

LINE_BYTES = 64 << 20  # of a job; a state of a million arrays has some 10 MB of sizes
ENDING_S = 5.0  # between a request to end and the kill


@dataclass(frozen=True, slots=True)
class WriterJob:
    """A job for the writer.

    root: the tier's folder.  file: the file in the arena, of the kind `kind` ("zip", "plain").
    sizes: bytes of a zip's arrays.  body_bytes: bytes of the plain file.  beside: the name of the
    small file, whose content follows the line.  rank, world_size, token, timeout_s: see gather.py.
    """

    root: str
    step: int
    file: str
    kind: str
    n_content: int
    sizes: list[int] = field(default_factory=list)
    body_bytes: int = 0
    beside: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    rank: int = 0
    world_size: int = 1
    token: str = ""
    timeout_s: float = 600.0
    is_empty: bool = False  # the rank takes part, with nothing to save
    refused: str = ""  # why the rank takes no part; sent to the other ranks
    will_block: bool = False  # whether the next save blocks, as rank 0 announces


@dataclass(frozen=True, slots=True)
class WriterResult:
    """The result of a job.

    path: of the committed checkpoint.  error: why no checkpoint exists.  will_block: whether the
    next save blocks, as announced by rank 0.
    """

    step: int
    path: str = ""
    size_bytes: int = 0
    write_s: float = 0.0
    error: str = ""
    will_block: bool = False


# In the training


_here: weakref.WeakSet[Writer] = weakref.WeakSet()


class Writer:
    """The training's end of the connection.  A child forked from the training closes the end.

    session: facts that hold for the whole life of the writer; see gather.py.
    """

    def __init__(self, session: dict[str, Any] | None = None) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "penstock.save.training.writer", str(theirs.fileno())]
        try:
            # A new session: Ctrl-C must reach only the training, which then closes the writer.
            self._process = subprocess.Popen(
                [*command, json.dumps(session or {})],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=with_package(os.environ),
            )
        except OSError as error:
            ours.close()
            raise SaveError(f"the writer cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._socket = ours
        self._sent: Arena | None = None
        self.pid = self._process.pid
        if not _here:
            os.register_at_fork(after_in_child=_forget_all)
        _here.add(self)

    def begin(self, job: WriterJob, content: bytes, arena: Arena | None) -> None:
        """Send a job.  Raises SaveError if the writer has ended."""
        sends_arena = arena is not None and arena is not self._sent
        line = json.dumps({**asdict(job), "has_arena": sends_arena}).encode() + b"\n"
        head = len(line).to_bytes(8, "little")
        try:
            if sends_arena and arena is not None:
                socket.send_fds(self._socket, [head], [arena.descriptor])
                self._sent = arena
            else:
                self._socket.sendall(head)
            self._socket.sendall(line + content)
        except OSError as error:
            raise SaveError(self._gone()) from error

    def finished(self) -> WriterResult:
        """Wait for the job and return the result.  Raises SaveError if the writer has ended."""
        try:
            line = _line(self._socket)
        except OSError:
            line = b""
        if not line:
            raise SaveError(self._gone())
        return WriterResult(**json.loads(line))

    def _gone(self) -> str:
        try:
            status: int | None = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            status = None
        how = "has closed its end"
        if status is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
        return (
            f"the process that writes checkpoints (pid {self.pid}) {how}; what it was writing is "
            "not there, older checkpoints are; the next save starts another"
        )

    def close(self, wait_s: float | None = None) -> None:
        """Close the socket, wait for the writer to end, and terminate the writer after wait_s.

        None: wait as long as the last job takes.
        """
        self._socket.close()
        _here.discard(self)
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def forget(self) -> None:
        """Close the socket in a forked child, so that the writer notices the training's end."""
        self._socket.close()


def _forget_all() -> None:
    for writer in list(_here):
        writer.forget()


# In the writer


def main(arguments: list[str] | None = None) -> None:
    """Run jobs until the training's end of the socket is closed."""
    number, session = (sys.argv[1:] if arguments is None else arguments)[:2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=int(number))
    from penstock.save.training.gather import WriterSession

    try:
        opened = WriterSession.of(json.loads(session))
    except (PenstockError, OSError) as error:
        _answer(end, WriterResult(-1, error=str(error)))
        return
    with opened as here:
        arena = None
        _answer(end, WriterResult(-1))
        while (received := _job(end)) is not None:
            job, content, descriptor = received
            if descriptor is not None:
                if arena is not None:
                    arena.close()
                arena = _mapped(descriptor)
            _answer(end, _do(job, content, arena, here))


def _answer(end: socket.socket, done: WriterResult) -> None:
    line = json.dumps(asdict(done)).encode()
    with suppress(OSError):  # the training has ended; the checkpoint exists nevertheless
        end.sendall(len(line).to_bytes(8, "little") + line)


def _mapped(descriptor: int) -> Arena:
    from penstock.save.training.arena import Arena

    return Arena(os.fstat(descriptor).st_size, descriptor)


def _do(job: WriterJob, content: bytes, arena: Arena | None, here: Any) -> WriterResult:
    from penstock.recording import recorder

    begin_s = time.perf_counter()
    span = recorder.begin("local commit", job.step)
    try:
        path, size_bytes, will_block = here.save(job, content, arena)
        write_s = time.perf_counter() - begin_s
        return WriterResult(job.step, path, size_bytes, write_s, will_block=will_block)
    except PenstockError as error:
        return WriterResult(job.step, error=str(error))
    except Exception as error:  # the training must receive every error
        return WriterResult(job.step, error=f"{type(error).__name__}: {error}")
    finally:
        if span is not None:
            span.end()


def _job(end: socket.socket) -> tuple[WriterJob, bytes, int | None] | None:
    """Return the next job; None when the socket is closed."""
    try:
        head, descriptors, _, _ = socket.recv_fds(end, 8, 1)
        while head and len(head) < 8:
            head += _exactly(end, 8 - len(head))
        if not head:
            return None
        length = int.from_bytes(head, "little")
        if length > LINE_BYTES:
            return None
        fields = json.loads(_exactly(end, length))
        fields.pop("has_arena")
        job = WriterJob(**fields)
        return job, _exactly(end, job.n_content), descriptors[0] if descriptors else None
    except (OSError, ValueError):  # cut short: the training was killed while sending
        return None


def _line(end: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(end, 8), "little")
    return _exactly(end, min(length, LINE_BYTES))


def _exactly(end: socket.socket, n_bytes: int) -> bytes:
    """Read exactly n_bytes.  Raises OSError if the other end closes earlier."""
    content = bytearray()
    while len(content) < n_bytes:
        piece = end.recv(min(n_bytes - len(content), 1 << 20))
        if not piece:
            raise ConnectionError("closed")
        content += piece
    return bytes(content)


if __name__ == "__main__":
    main()
