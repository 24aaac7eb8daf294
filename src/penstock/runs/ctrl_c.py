"""Handle Ctrl-C during a query.  Knows no query.

DuckDB catches the KeyboardInterrupt and raises another error.  The other error looks like a fault
of the query or of Penstock.  DuckDB's threads do not notice the interrupt, so the query continues.
Only commands listen for Ctrl-C.  A program that opens a run keeps the program's signal handling.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["heard", "queries_follow"]

# Error of duckdb's Python package in the waiting thread, without a cause.
_RUNTIME_ERROR = "Query interrupted"
# duckdb.InterruptException: raised where the engine itself notices the end of the query first.
_ENGINE_ERROR = "InterruptException"
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OVER = b"\0"  # no signal


class _Listener:
    """A thread that receives signals while the main thread is inside a query."""

    def __init__(self) -> None:
        self._heard, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="penstock Ctrl-C", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while (signals := os.read(self._heard, 1)) != _OVER:
            if signals[0] in _ENDINGS:
                _interrupt_queries()

    def close(self) -> None:
        with suppress(ValueError, OSError):  # not the main thread, or the descriptor is closed
            signal.set_wakeup_fd(self._before)
        os.write(self._told, _OVER)
        self._thread.join()
        os.close(self._heard)
        os.close(self._told)


def _interrupt_queries() -> None:
    duckdb = sys.modules.get("duckdb")
    kind = getattr(duckdb, "DuckDBPyConnection", None)
    for living in gc.get_objects():
        if kind is not None and type(living) is kind:
            with suppress(Exception):  # the connection is closed
                living.interrupt()


class _Command:
    """The command of the process."""

    depth = 0
    listener: _Listener | None = None


def queries_follow() -> None:
    """Listen for Ctrl-C from now on: a connection has been made."""
    is_main = threading.current_thread() is threading.main_thread()
    if _Command.depth and _Command.listener is None and is_main:
        _Command.listener = _Listener()


def _is_ctrl_c(error: BaseException | None) -> bool:
    """Return True if the error, or an error in its chain of causes, ended an interrupted query."""
    while error is not None:
        if isinstance(error, RuntimeError) and str(error) == _RUNTIME_ERROR:
            return True
        if type(error).__name__ == _ENGINE_ERROR:
            return True
        error = error.__cause__
    return False


@contextmanager
def heard() -> Iterator[None]:
    """Run the work of a command.

    Raises KeyboardInterrupt if Ctrl-C, or a signal handled as Ctrl-C, interrupted a query.
    """
    _Command.depth += 1
    try:
        yield
    except Exception as error:
        if not _is_ctrl_c(error):
            raise
        raise KeyboardInterrupt from error
    finally:
        _Command.depth -= 1
        if not _Command.depth and _Command.listener is not None:
            listener, _Command.listener = _Command.listener, None
            listener.close()
