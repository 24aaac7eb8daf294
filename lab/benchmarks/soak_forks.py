"""Fork saving programs and loaders of a framework for the rounds of soak_units.py.

One process per family imports the frameworks once.  A round is a small process without a framework,
as each fork of a large process costs CPU time for each page.  The round asks for a child by a
message on a socket, and the answers are the child's pid, the child's own messages, and the end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from soak_children import SPENT, SavingProgram, Wrong, answered, forked, saving
from soak_layouts import LAYOUTS, Layout, ready

__all__ = ["Child", "address_of", "import_all", "serving"]

MOST_MESSAGE = 100_000  # bytes
MOST_CONNECT_S = 60.0


def address_of(family: str, parent: int) -> str:
    """Return the address of a family's process: a name without a file."""
    return f"\0penstock-soak-{parent}-{family}"


# --- the process of a family ----------------------------------------------------------------------


def serving(family: str, layouts: Sequence[Layout], folder: Path, ready_file: Path) -> None:
    """Import the frameworks, write `ready_file`, and fork a child for each message.

    Raises SystemExit: a package is missing.
    """
    if why := ready(family, layouts):
        raise SystemExit(f"{family}: {why}")
    _import_ahead(layouts, folder / family.replace(" ", "-"))
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address_of(family, os.getppid()))
    listening.listen(256)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    ready_file.touch()
    children: dict[int, tuple[int, socket.socket]] = {}  # by descriptor: pid, connection
    polled = select.poll()
    polled.register(read, select.POLLIN)
    polled.register(listening, select.POLLIN)
    while True:
        for number, _ in polled.poll(5000):
            if number == read:
                os.read(read, 4096)
            elif number == listening.fileno():
                connection, _ = listening.accept()
                with connection:
                    if pid := _child(connection, listening):
                        kept = connection.dup()
                        children[kept.fileno()] = pid, kept
                        polled.register(kept, 0)  # the end alone: the rest is for the loader
            elif number in children:  # the round has ended
                with suppress(ProcessLookupError):
                    os.killpg(children[number][0], signal.SIGKILL)
                with suppress(ProcessLookupError):
                    os.kill(children[number][0], signal.SIGKILL)
                polled.unregister(number)
                children.pop(number)[1].close()
        _reap(children, polled)


def _reap(children: dict[int, tuple[int, socket.socket]], polled: Any) -> None:
    """Send the end of each ended child to the child's round."""
    with suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            for number, (child_pid, connection) in list(children.items()):
                if child_pid == pid:
                    end = {"status": status, "cpu_s": used.ru_utime + used.ru_stime}
                    with suppress(OSError):
                        connection.send(json.dumps(end).encode())
                    polled.unregister(number)
                    connection.close()
                    del children[number]


def _child(connection: socket.socket, listening: socket.socket) -> int:
    """Fork a child for a connection's first message; 0: no message came."""
    data = connection.recv(MOST_MESSAGE)
    if not data:
        return 0
    wanted = json.loads(data)
    layout = LAYOUTS[wanted["layout"]]

    def work() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        if wanted["job"] is None:
            _loading(layout, connection)
            return
        connection.close()
        job = wanted["job"]
        paths = {name: Path(job.pop(name)) for name in ("tier", "said", "stop")}
        saving(SavingProgram(layout=layout, **job | paths))

    pid = forked(work, Path(wanted["log"]), is_group=True)
    connection.send(json.dumps({"pid": pid}).encode())
    return pid


def _loading(layout: Layout, connection: socket.socket) -> None:
    """Load what a round asks for, until the round asks for nothing."""
    while paths := json.loads(connection.recv(MOST_MESSAGE) or b"[]"):
        numbers = {}
        for path in paths:
            try:
                values = layout.load(Path(path))
                numbers[path] = int(values.pop()) if len(values) == 1 else 0
                if values:
                    print(f"{path}: of several saves: {values}", flush=True)
            except BaseException as error:  # DCP's is no Exception
                print(f"{path}: {type(error).__name__}: {error}"[:600], flush=True)
                numbers[path] = 0
        connection.send(json.dumps({"found": numbers}).encode())


def _import_ahead(layouts: Sequence[Layout], folder: Path) -> None:
    """Import the modules that a child would import later: of a save and a load by each layout.
    The saves and the loads run in children."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for layout in layouts:
        work = lambda layout=layout: _modules_of(layout, folder)  # noqa: E731
        import_all(answered(work, folder, "modules"))
    shutil.rmtree(folder)
    gc.freeze()  # a collection in a child would copy all pages


def _modules_of(layout: Layout, folder: Path) -> list[str]:
    """Return the modules of this process after a save, as rank 0, and a load."""
    tier, store = folder / "tier", folder / "store"
    shutil.rmtree(tier, ignore_errors=True)
    store.unlink(missing_ok=True)
    tier.mkdir()

    def saved(rank: int) -> None:
        os.environ |= {"SOAK_RANK": str(rank), "SOAK_STORE": os.fspath(store)}
        layout.opened()(tier, 1, 1, lambda: None)

    ranks = range(1, layout.n_ranks)
    pids = [forked(lambda rank=rank: saved(rank), folder / "rank.log") for rank in ranks]
    saved(0)
    for pid in pids:
        os.waitpid(pid, 0)
    layout.load(layout.paths(tier)[0])
    return sorted(sys.modules)


def import_all(names: Sequence[str]) -> None:
    # The public names first: asyncio is of two halves if `_asyncio` is imported before asyncio.
    for name in sorted(names, key=lambda name: name.startswith("_")):
        if name not in sys.modules:
            with suppress(Exception):  # some names are of no file
                importlib.import_module(name)


# --- a round's side -------------------------------------------------------------------------------


class Child:
    """A child of the family's process: a saving program, or a loader without a job."""

    def __init__(self, address: str, name: str, layout: str, log: Path, job: Any = None) -> None:
        self._name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(MOST_CONNECT_S)
        self._socket.connect(address)
        wanted = {"layout": layout, "log": os.fspath(log), "job": job}
        self._socket.send(json.dumps(wanted).encode())
        self._status: int | None = None
        self.pid = int(json.loads(self._socket.recv(MOST_MESSAGE))["pid"])

    def ends(self, within_s: float | None) -> int | None:
        """Wait for the end.  Return the wait status; None: still alive."""
        until_s = None if within_s is None else time.monotonic() + within_s
        while self._status is None:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._socket], [], [], left_s)[0]:
                return None
            self._hear()
        return self._status

    def _hear(self) -> dict[str, Any]:
        data = self._socket.recv(MOST_MESSAGE)
        if not data:
            raise Wrong(f"{self._name}: the process of the family has ended")
        heard: dict[str, Any] = json.loads(data)
        if "status" in heard:
            self._status = heard["status"]
            spent = SPENT.setdefault(self._name, [0.0, 0])
            spent[0], spent[1] = round(spent[0] + heard["cpu_s"], 3), spent[1] + 1
            self._socket.close()
        return heard

    def asked(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the answer of a loader: the number of the save at each path; 0: not whole."""
        self._socket.settimeout(None)
        self._socket.send(json.dumps(paths).encode())
        heard = self._hear()
        if "found" not in heard:
            raise Wrong(f"{self._name}: status {self._status}")
        numbers: dict[str, int] = heard["found"]
        return numbers

    def killed(self, then: Callable[[int], bool] = lambda pid: False) -> None:
        """SIGKILL for the process group.  `then`: returns True while a part is alive."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.ends(None)
        while then(self.pid):
            time.sleep(0.005)
