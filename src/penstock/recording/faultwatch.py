"""Sample page faults of a self-recording process, by a small program beside the process.

The program is native/beside/faultwatch.c.  Knows nothing of logs and tables.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from penstock.installed import native_part

# As in recorder.py: a self-recording job imports this file, and pathlib is slow to import.
# ruff: noqa: PTH100, PTH108, PTH118

__all__ = ["MEASURED", "FaultWatch", "faults_path", "why_not"]

MEASURED = "measured"
BEGIN_S = 2.0  # the sampler opens its perf events in some 20 ms, longer under load
END_S = 5.0  # time limit for writing the rest of the buffers
PARANOID = "/proc/sys/kernel/perf_event_paranoid"


class FaultWatch:
    """Samples page faults of this process into a file of the folder, until end().

    Threads and new forks of the process are sampled too.  state: "measured", or the reason of the
    failure.  The constructor raises nothing: the window opens without samples too.
    """

    def __init__(self, folder: str, library: str) -> None:
        self.state = MEASURED
        self._pid = os.getpid()
        self._in = self._out = -1
        self._path = faults_path(folder)
        try:
            self._start(
                [native_part("faultwatch"), os.path.abspath(library), self._path, str(self._pid)]
            )
            said = self._line(BEGIN_S)
        except OSError as error:
            self.state = f"the recorder has no sampler: {error.strerror}"
        else:
            if said is None:
                self.state = f"the sampler did not begin within {BEGIN_S:.0f} s"
            elif said:
                self.state = why_not(said)
        if self.state != MEASURED:
            self._close()

    def end(self) -> None:
        """End the sampling once all samples are in the file; do nothing in a forked child."""
        if os.getpid() == self._pid and self._in >= 0:
            # If the sampler has ended early, the file holds the samples up to that moment.
            with contextlib.suppress(OSError):
                os.write(self._in, b"e")
                self._line(END_S)
        self._close()

    def drop(self) -> None:
        """End the sampling and remove the file: the window did not open."""
        self.end()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _start(self, command: list[str]) -> None:
        """Start the sampler as a grandchild; the direct child ends at once.

        A program that waits for any child may meet the direct child for a moment, and never the
        sampler.
        """
        theirs_in, self._in = os.pipe()
        self._out, theirs_out = os.pipe()
        environ = {key: text for key, text in os.environ.items() if key != "LD_PRELOAD"}
        actions = [(os.POSIX_SPAWN_DUP2, theirs_in, 0), (os.POSIX_SPAWN_DUP2, theirs_out, 1)]
        try:
            started = os.posix_spawn(command[0], command, environ, file_actions=actions)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        # the job ignores SIGCHLD: no child to wait for
        with contextlib.suppress(ChildProcessError):
            os.waitpid(started, 0)

    def _line(self, timeout_s: float) -> int | None:
        """Return the number on the sampler's next line; None: no line in time."""
        import select

        said, waiting = b"", select.poll()  # poll, not select: the descriptor may be above 1024
        waiting.register(self._out, select.POLLIN)
        while not said.endswith(b"\n"):
            if not waiting.poll(1000 * timeout_s):
                return None
            more = os.read(self._out, 64)
            if not more:
                raise OSError(errno.EPIPE, "it ended by itself")
            said += more
        return int(said)

    def _close(self) -> None:
        for descriptor in (self._in, self._out):
            if descriptor >= 0:
                os.close(descriptor)
        self._in = self._out = -1


def faults_path(folder: str) -> str:
    """Return the path of a new file in the run folder.

    A process with several windows has several files.
    """
    host, number = socket.gethostname().replace("/", "_"), 1
    while True:
        middle = f"-{number}" if number > 1 else ""
        path = os.path.join(os.path.abspath(folder), f"{host}{middle}.{os.getpid()}.faults")
        if not os.path.lexists(path):
            return path
        number += 1


def why_not(error: int) -> str:
    """Return why the kernel refuses page-fault samples, with the setting to change."""
    try:
        with open(PARANOID) as file:
            paranoid = int(file.read())
    except (OSError, ValueError):
        return "this kernel has no perf events"
    if error in (errno.EACCES, errno.EPERM) and paranoid > 2:
        return f"perf_event_paranoid = {paranoid}"
    if error in (errno.EACCES, errno.EPERM):
        return "perf_event_open is forbidden here (a container's seccomp profile, locked memory)"
    if error == errno.EMFILE:
        return "each thread needs four descriptors a processor, more than this user may have open"
    return f"perf_event_open: {os.strerror(error)}"
