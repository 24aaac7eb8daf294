"""Servers on loopback for tests of remote tiers: S3 by moto, Google Cloud Storage by
gcp-storage-emulator, SFTP by asyncssh.  Fixtures."""

import asyncio
import os
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from penstock.places.stores import Store, open_store

__all__ = ["BUCKET", "gs", "gs_server", "s3", "s3_server", "sftp_server"]

BUCKET = "checkpoints"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    from werkzeug.serving import WSGIRequestHandler

    WSGIRequestHandler.disable_nagle_algorithm = True  # else a body comes 40 ms after its headers
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3(s3_server: str, tmp_path: Path) -> Store:
    store = open_store(
        f"s3://{BUCKET}/{tmp_path.name}",
        key="a",
        secret="b",
        client_kwargs={"endpoint_url": s3_server, "region_name": "us-east-1"},
    )
    if not store._fs.exists(BUCKET):
        store.call("create_bucket", Bucket=BUCKET)
    return store


@pytest.fixture(scope="session")
def gs_server() -> Iterator[str]:
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed"
    )
    with pytest.MonkeyPatch.context() as before_import:
        # It asks by gRPC what kind of bucket it is, which the emulator has not: a minute.
        before_import.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        pytest.importorskip("gcsfs", reason="gcsfs is not installed")

    def cancelled(request: object, response: Any, storage: object) -> None:
        response.status = HTTPStatus.NO_CONTENT

    # It cannot cancel an upload, which gcsfs then tries for half a minute.
    for _, calls in emulator.HANDLERS:
        if emulator.objects.upload_partial in calls.values():
            calls["DELETE"] = cancelled
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_port}"
    server.stop()


@pytest.fixture
def gs(gs_server: str, tmp_path: Path) -> Store:
    return open_store(f"gs://{BUCKET}/{tmp_path.name}", endpoint_url=gs_server, token="anon")


@pytest.fixture(scope="session")
def sftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    pytest.importorskip("paramiko", reason="paramiko is not installed")
    root = tmp_path_factory.mktemp("sftp")
    loop, ready, port = asyncio.new_event_loop(), threading.Event(), [0]

    class Anyone(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    async def serve() -> None:
        server = await asyncssh.create_server(
            Anyone,
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda chan: asyncssh.SFTPServer(chan, chroot=os.fspath(root)),
        )
        port[0] = server.sockets[0].getsockname()[1]
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(240)
    yield port[0], root
    loop.call_soon_threadsafe(loop.stop)
    thread.join(240)
