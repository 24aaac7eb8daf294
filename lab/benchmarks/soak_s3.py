"""A slow tier of soak_units.py in S3: moto on loopback, in a process of the round.

Knows rounds and stores; judges nothing.  The frameworks load from a copy of the bucket in a folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.places.stores import open_store
from penstock.save.checkpoint import HALF, INCOMPLETE, parts_of_half
from penstock.save.copy.generations import end_moves
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings

if TYPE_CHECKING:
    from soak_units import Round

__all__ = ["BUCKET", "dies_at_request", "mirrored", "s3_modules", "s3_tier"]

BUCKET = "soak"
MOST_START_S = 60.0


def _serving(address_file: Path) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    draft = address_file.with_suffix(".new")
    draft.write_text(f"http://{host}:{port}")
    draft.rename(address_file)
    while True:
        time.sleep(3600)


@contextmanager
def s3_tier(round_: Round) -> Iterator[None]:
    """Serve an empty bucket, and make the bucket the round's slow tier."""
    from soak_children import answered, forked

    address_file = round_.folder / "s3"
    round_.pids["s3"] = forked(lambda: _serving(address_file), round_.folder / "s3.log")
    until_s = time.monotonic() + MOST_START_S
    while not address_file.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{address_file}: moto has not started")
        time.sleep(0.05)
    _reach(address_file.read_text())
    round_.slow_url = f"s3://{BUCKET}/run"
    answered(lambda: str(open_store(round_.slow_url).call("create_bucket", Bucket=BUCKET)),
             round_.folder, "bucket")  # fmt: skip
    try:
        yield
    finally:
        round_.kill("s3")


def s3_modules(folder: Path) -> list[str]:
    """Return the modules of this process after work with a server and a client in the process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    _reach(f"http://{host}:{port}")
    store = open_store(f"s3://{BUCKET}/run")
    store.call("create_bucket", Bucket=BUCKET)
    (folder / "file").write_bytes(b"x" * 100)
    with Drainer(folder, store.url, DrainSettings(settle_s=0, tries=1)) as working:
        working.once()
    store.list()
    return sorted(sys.modules)


def _reach(url: str) -> None:
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "FSSPEC_S3_ENDPOINT_URL": url,
    }


def dies_at_request(number: int) -> Callable[[], None]:
    """SIGKILL at a numbered request that changes the bucket."""

    def spoil() -> None:
        from aiobotocore.client import AioBaseClient

        left, call = [number], AioBaseClient._make_api_call

        async def counted(client: Any, name: str, facts: Any) -> Any:
            left[0] -= name.startswith(("Put", "Copy", "Delete", "Upload", "Complete"))
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return await call(client, name, facts)

        AioBaseClient._make_api_call = counted

    return spoil


def mirrored(url: str, folder: Path) -> None:
    """Copy the counting files of a bucket into an empty folder, as a drain or `recover` leaves the
    bucket.

    The moves of a complete draft are ended.  A copy without a manifest does not count yet.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = open_store(url)
    for entry in store.list():
        path = folder / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.read(entry.name))
    copy = open_store(folder)
    end_moves(copy)
    for name in [entry.name for entry in copy.list()]:
        if name.endswith(f"/{INCOMPLETE}"):
            shutil.rmtree((folder / name).parent, ignore_errors=True)
        elif name.endswith(HALF):
            for part in parts_of_half(copy, name)[1]:
                (folder / part).unlink(missing_ok=True)
