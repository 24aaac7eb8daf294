"""Run the demonstration: record a waiting training, apply the remedy, compare.

The pictures come from a web server on loopback with 15 ms a request.  The demonstration needs no
other machine and no privileges.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import RunError
from penstock.trial.demo import job
from penstock.words import show

__all__ = ["N_PICTURES", "demonstrate"]

N_PICTURES = 480
EPOCHS = 4
DELAY_MS = 15
MODULE = "penstock.trial.demo"
Progress = Callable[[int, int], None]


def demonstrate(
    folder: Path,
    say: Callable[[str], None],
    progress: Progress,
    n_pictures: int = N_PICTURES,
    epochs: int = EPOCHS,
) -> None:
    """Run the demonstration in a new folder; the commands print their own output.

    say: prints a line of explanation.  progress: is called with pictures made, and all.  Raises
    RunError: the folder is not empty, or a command failed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty; choose another folder: penstock demo -o FOLDER")
    pictures = folder / "pictures"
    _make_pictures(pictures, n_pictures, progress)
    size = show(n_pictures * job.SIDE**2 * 3, "B")
    with _server(pictures) as url:
        say(
            f"1. {n_pictures} pictures, {size}, behind a web server that takes {DELAY_MS} ms a "
            "request.\n   The training requests one picture after another:"
        )
        training = ["-m", f"{MODULE}.job", url, "--epochs", str(epochs)]
        _command(say, "run", "-o", folder / "before", "--", sys.executable, *training)
        say(
            "2. The remedy of finding N1 is more requests at once. The same training reads\n"
            "   by penstock.feed:"
        )
        _command(say, "run", "-o", folder / "after", "--", sys.executable, *training, "--feed")
    say("3. The proof:")
    _command(say, "compare", folder / "before", folder / "after")
    page, comparison = folder / "run.html", folder / "compare.html"
    _command(None, "report", folder / "before", "-o", page)
    _command(None, "compare", folder / "before", folder / "after", "-o", comparison)
    say(f"As pages: {page} and {comparison}. Now your own job: penstock run python train.py")


def _make_pictures(folder: Path, n_pictures: int, progress: Progress) -> None:
    folder.mkdir(parents=True)
    for number in range(n_pictures):
        (folder / f"{number:05}.rgb").write_bytes(job.picture(number))
        progress(number + 1, n_pictures)


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Run the server in a separate process, until the block ends.  Yields the address."""
    words = [sys.executable, "-m", f"{MODULE}.server", str(folder), "--delay-ms", str(DELAY_MS)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            if not port:
                raise RunError("the server of the demonstration did not start")
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.stdin.close()


def _command(say: Callable[[str], None] | None, *words: str | Path) -> None:
    """Run `penstock WORDS`, and print the command.  Raises RunError: the command failed."""
    typed = " ".join("python" if word == sys.executable else str(word) for word in words)
    if say is not None:
        say(f"\n   $ penstock {typed}\n")
    # A single thread computes: the other CPUs read.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "penstock", *words]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise RunError(f"penstock {typed} ended with status {status}")
