"""Connections: what is recorded of them, against what the server at their other end counted."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from netservers import Store, counting_server, make_certificate, object_store
from penstock.explain.measures import measure

WORKLOADS = Path(__file__).parent / "workloads"
FIRST_NS, BETWEEN_NS = 30e6, 20e6  # as connections_known.py asks


@pytest.fixture
def known(
    recorded_command: Callable[..., Any], work: Path
) -> tuple[Any, Any, dict[str, list[Any]]]:
    """The run of connections_known.py, the server's counts, and the rows of each way."""
    program = WORKLOADS / "connections_known.py"
    with counting_server() as (port, counts):
        run = recorded_command(["sh", "-c", f"exec {sys.executable} {program} {port} > told"])
    rows = {
        row[0]: row
        for row in run.sql(
            """
            SELECT local_port, received_bytes, sent_bytes, answers, first_byte_ns, transfer_ns,
                waited_first_byte_ns, waited_transfer_ns, endpoint, is_loopback, is_accepted,
                opened_ns, connect_ns, closed_ns, kernel_received_bytes, object, peer_port,
                counted_ns
            FROM connections
            """
        ).fetchall()
    }
    by_way: dict[str, list[Any]] = {}
    for line in (work / "told").read_text().splitlines():
        way, own_port, asks = line.rsplit(" ", 2)
        by_way.setdefault(way, []).append((int(own_port), int(asks), rows.get(int(own_port))))
    return run, counts, by_way


def test_the_bytes_of_a_connection_are_those_that_its_server_counted(
    known: tuple[Any, Any, dict[str, list[Any]]],
) -> None:
    _, counts, by_way = known
    assert len(by_way) == 16
    for way, found in by_way.items():
        for port, asks, row in found if way != "refused" else ():
            assert (row[1], row[2]) == (counts.sent[port], counts.received[port]), way
            assert row[3] == asks, way
            # From a send's end to the first bytes, and from these to the last.  MSG_WAITALL brings
            # both at once; of a copy (dup) it is not known when an answer began.
            first_ns, between_ns = (50e6, 0) if way == "waitall" else (FIRST_NS, BETWEEN_NS)
            # On a busy machine a send ends some milliseconds after the server has the request.
            late_ns = 1e6 + asks * 4e6
            assert row[4] > asks * first_ns - late_ns, way
            if way != "dup":
                # A reader that is late at the first bytes is not late at the last.
                assert row[4] + row[5] > asks * (first_ns + between_ns) - late_ns, way
                assert row[5] >= asks * between_ns / 4, way
            assert row[12] + row[4] + row[5] <= row[17] - row[11], way  # no longer than it was open
            assert row[14] in (row[1], row[1] + 1), way
            if way not in ("asyncio", "waitall"):  # whose threads wait for all at once
                assert row[6] > 0.5 * asks * FIRST_NS, way
                assert row[7] >= 0.25 * asks * BETWEEN_NS, way
            assert row[9]
            assert not row[10]
            assert row[11] is not None
            assert row[12] > 0
            assert (row[13] is None) == (way == "left open"), way
            # Debian links the module of sockets into the interpreter.
            assert row[15].startswith(("_socket.", Path(sys.executable).resolve().name)), way


def test_an_endpoint_has_the_name_that_was_asked_for(
    known: tuple[Any, Any, dict[str, list[Any]]],
) -> None:
    run, _, by_way = known
    [(_, _, row)] = by_way["recv"]
    assert row[8] == f"localhost:{row[16]}"
    [(refused, _, _)] = by_way["refused"]
    query = "SELECT connect_ns, closed_ns IS NOT NULL, received_bytes FROM connections"
    [told] = run.sql(f"{query} WHERE endpoint = '127.0.0.1:{refused}'").fetchall()
    assert told == (None, True, 0)


def test_a_wait_says_what_it_waited_for_at_which_endpoint(
    known: tuple[Any, Any, dict[str, list[Any]]],
) -> None:
    run, _, by_way = known
    [(_, _, row)] = by_way["recv"]
    rows = run.sql(
        f"""
        SELECT op, phase, count(*) FROM blocked
        WHERE descriptor = 'socket:localhost:{row[16]}' AND duration_ns > 4e6 GROUP BY ALL
        """
    ).fetchall()
    waits = {(op, phase): n for op, phase, n in rows}
    assert waits["receive", "first byte"] >= 8  # recv (3), recv_into, recvmsg, waitall, peek …
    assert waits["receive", "transfer"] >= 6
    for op in ("poll", "select", "epoll"):
        assert waits[op, "first byte"] >= 1
        assert waits[op, "transfer"] >= 1
    assert run.sql("SELECT * FROM blocked WHERE op = 'resolve'").fetchall()
    phases = """
        SELECT count(*) FILTER ("result" = 3), count(*) FILTER ("result" = 4) FROM events
        WHERE file_kind = 'socket' AND op IN ('read', 'readv') AND duration_ns > 4e6
    """
    assert min(run.sql(phases).fetchall()[0]) >= 2


def test_a_server_of_the_job_itself_is_named_at_both_ends(recorded: Callable[..., Any]) -> None:
    run = recorded(
        """
        import os, socket
        listener = socket.create_server(("127.0.0.1", 0))
        if not os.fork():
            with listener.accept()[0] as peer:
                while data := peer.recv(100):
                    peer.sendall(data * 1000)
            os._exit(0)
        with socket.create_connection(listener.getsockname()) as to:
            to.sendall(b"x" * 10)
            left = 10_000
            while left:
                left -= len(to.recv(left))
        os.wait()
        """
    )
    rows = run.sql(
        """
        SELECT process = peer_process, is_accepted, received_bytes, sent_bytes,
            starts_with(endpoint, 'accepted:') FROM connections ORDER BY is_accepted
        """
    ).fetchall()
    assert rows == [(False, False, 10_000, 10, False), (False, True, 10, 10_000, True)]


def test_a_forked_child_counts_its_own_part_of_a_connection(recorded: Callable[..., Any]) -> None:
    with counting_server() as (port, counts):
        run = recorded(
            f"""
            import os, socket, struct
            to = socket.create_connection(("127.0.0.1", {port}))
            def get(n):
                to.sendall(struct.pack("<III", n, 0, 0))
                while n:
                    n -= len(to.recv(n))
            get(1000)
            if not os.fork():
                get(5000)
                os._exit(0)
            os.wait()
            get(200)
            """
        )
    rows = run.sql(
        "SELECT received_bytes, sent_bytes, is_earlier FROM connections ORDER BY process"
    ).fetchall()
    assert rows == [(1200, 24, False), (5000, 12, True)]
    assert list(counts.sent.values()) == [6200]


def test_a_descriptor_that_was_passed_is_the_receiver_s_connection(
    recorded: Callable[..., Any],
) -> None:
    with counting_server() as (port, counts):
        run = recorded(
            f"""
            import os, socket, struct
            ours, theirs = socket.socketpair(socket.AF_UNIX)
            if not os.fork():
                _, [fd], _, _ = socket.recv_fds(theirs, 1, 1)
                to = socket.socket(fileno=fd)
                to.sendall(struct.pack("<III", 3000, 0, 0))
                left = 3000
                while left:
                    left -= len(to.recv(left))
                os._exit(0)
            to = socket.create_connection(("127.0.0.1", {port}))
            socket.send_fds(ours, [b"x"], [to.fileno()])
            to.close()
            os.wait()
            """
        )
    rows = run.sql("SELECT received_bytes, is_earlier FROM connections ORDER BY process").fetchall()
    assert rows == [(0, False), (3000, True)]
    assert list(counts.sent.values()) == [3000]


def test_a_connection_of_a_killed_process_has_the_counts_of_a_second_before(
    recorded: Callable[..., Any],
) -> None:
    with counting_server() as (port, _):
        run = recorded(
            f"""
            import os, signal, socket, struct, time
            to = socket.create_connection(("127.0.0.1", {port}))
            end = time.monotonic() + 1.5
            n = 0
            while time.monotonic() < end or n < 20:
                to.sendall(struct.pack("<III", 1000, 10, 0))
                left = 1000
                while left:
                    left -= len(to.recv(left))
                n += 1
            os.kill(os.getpid(), signal.SIGKILL)
            """,
            status=-9,
        )
    [(received, closed_ns)] = run.sql(
        "SELECT received_bytes, closed_ns FROM connections"
    ).fetchall()
    assert received >= 10_000
    assert closed_ns is None


def test_an_address_of_ipv6_is_written_as_such(recorded: Callable[..., Any]) -> None:
    try:
        with counting_server(socket.AF_INET6) as (port, _):
            run = recorded(
                f"""
                import socket, struct
                with socket.create_connection(("::1", {port})) as to:
                    to.sendall(struct.pack("<III", 10, 0, 0))
                    left = 10
                    while left:
                        left -= len(to.recv(left))
                """
            )
    except OSError:
        pytest.skip("no IPv6 here")
    rows = run.sql("SELECT endpoint, peer_address, received_bytes FROM connections").fetchall()
    assert rows == [(f"::1:{port}", "::1", 10)]


def test_tls_is_counted_as_it_passes_the_wire(
    recorded: Callable[..., Any], made_once: Callable[..., Path]
) -> None:
    """OpenSSL reads and writes the descriptor; what it adds to 20 answers is below 1 %."""
    certificate = made_once(("certificate.pem",), make_certificate)
    with object_store(Store(delay_s=0.02), certificate) as store:
        run = recorded(
            f"""
            import http.client, ssl
            context = ssl._create_unverified_context()
            to = http.client.HTTPSConnection("localhost", {store.port}, context=context)
            for n in range(20):
                to.request("GET", f"/{{n}}")
                assert len(to.getresponse().read()) == 65536
            to.close()
            """
        )
    [(received, kernel, answers, waited)] = run.sql(
        """
        SELECT received_bytes, kernel_received_bytes, answers, waited_first_byte_ns
        FROM connections WHERE NOT is_accepted AND received_bytes > 0  -- IPv6 may be asked before
        """
    ).fetchall()
    assert len(store.requests) == 20
    assert store.answered_bytes < received < 1.01 * store.answered_bytes + 5000
    assert kernel in (received, received + 1)
    assert 20 <= answers <= 23  # the handshake's, too
    assert waited > 20 * 18e6


def test_a_run_without_a_network_has_no_connection(recorded: Callable[..., Any]) -> None:
    run = recorded(
        """
        import socket
        ours, theirs = socket.socketpair()
        ours.send(b"x" * 10)
        assert len(theirs.recv(20)) == 10
        """
    )
    assert run.sql("SELECT count(*) FROM connections").fetchall() == [(0,)]
    [(path,)] = run.sql("SELECT DISTINCT path FROM files WHERE kind = 'socket'").fetchall()
    assert path == "socket:unix"


SHORT = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
        peer.sendall(b"ask")
        assert len(peer.recv(100)) == 100
"""


def test_short_connections_past_the_single_ones_are_sums(
    recorded_command: Callable[..., Any],
) -> None:
    single, more = 10_000, 600  # as native/connections.c has it
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        for _ in range(single + more):
            peer, _ = listener.accept()
            with peer:
                peer.recv(3)
                peer.sendall(bytes(100))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = str(listener.getsockname()[1])
    run = recorded_command([sys.executable, "-c", SHORT, port, str(single + more)])
    thread.join()
    listener.close()
    text = """
        SELECT sum(connections), count(*), sum(received_bytes), sum(sent_bytes), sum(answers),
            count(DISTINCT endpoint)
        FROM connections
    """
    total = single + more
    assert run.sql(text).fetchall() == [(total, single + 1, 100 * total, 3 * total, total, 1)]
    columns = "connections, connect_ns, opened_ns, closed_ns"
    [(connections, connect_ns, opened_ns, closed_ns)] = run.sql(
        f"SELECT {columns} FROM connections WHERE connections > 1"
    ).fetchall()
    assert connections == more
    assert 0 < connect_ns < 50e6
    assert more * connect_ns < closed_ns - opened_ns
    logs = Path(run.folder).glob("*.log")
    assert sum(log.stat().st_size for log in logs) < 12 << 20
    [endpoint] = measure(run).endpoints
    assert (endpoint.connections, endpoint.summed, endpoint.failed) == (total, more, 0)
    assert endpoint.reopened == total - 1


BY_PYTHON = """
import socket, ssl, sys
context = ssl._create_unverified_context()
with socket.create_connection((sys.argv[2], int(sys.argv[1]))) as plain:
    with context.wrap_socket(plain, server_hostname="data.example.org") as peer:
        peer.sendall(b"GET /1 HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        while peer.recv(100_000):
            pass
"""
BY_CURL = """
import subprocess, sys
to = f"data.example.org:{sys.argv[1]}"
subprocess.run(["curl", "-ks", "-o", "/dev/null", "--resolve", f"{to}:{sys.argv[2]}",
    f"https://{to}/1"], check=True)
"""
BY_RUST = """
import sys
from obstore.store import HTTPStore
options = {"allow_invalid_certificates": True}
HTTPStore(f"https://localhost:{sys.argv[1]}", client_options=options).get("1").bytes()
"""


@pytest.mark.parametrize(
    ("program", "address", "name"),
    [
        (BY_PYTHON, "127.0.0.1", "data.example.org"),
        (BY_PYTHON, "::1", "data.example.org"),
        (BY_CURL, "127.0.0.1", "data.example.org"),
        (BY_RUST, "127.0.0.1", "localhost"),
    ],
    ids=["openssl", "openssl, IPv6", "curl", "rustls"],
)
def test_a_tls_connection_to_an_address_has_the_name_that_its_client_greets(
    program: str,
    address: str,
    name: str,
    recorded_command: Callable[..., Any],
    made_once: Callable[..., Path],
) -> None:
    if program == BY_CURL and not shutil.which("curl"):
        pytest.skip("there is no curl")
    if program == BY_RUST:
        pytest.importorskip("obstore")
    certificate = made_once(("certificate.pem",), make_certificate)
    with object_store(Store(delay_s=0.02), certificate, address) as store:
        command = [sys.executable, "-c", program, str(store.port), address]
        run = recorded_command(command)
    assert len(store.requests) == 1
    endpoints = run.sql("SELECT DISTINCT endpoint FROM connections WHERE received_bytes > 0")
    assert endpoints.fetchall() == [(f"{name}:{store.port}",)]
    waits = run.sql("SELECT DISTINCT descriptor FROM blocked WHERE phase = 'first byte'").fetchall()
    assert {*waits} <= {(f"socket:{name}:{store.port}",)}


def hello(names: bytes, *, kind: int = 0) -> bytes:
    """A ClientHello of TLS 1.2 with a list of server names."""
    listed = len(names).to_bytes(2, "big") + names
    extension = kind.to_bytes(2, "big") + len(listed).to_bytes(2, "big") + listed
    extensions = b"\0\x17\0\0" + extension
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    body += len(extensions).to_bytes(2, "big") + extensions
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\3\1" + len(message).to_bytes(2, "big") + message


def host(name: bytes, length: int | None = None) -> bytes:
    return b"\0" + (len(name) if length is None else length).to_bytes(2, "big") + name


# What a client sends first, and the name that its connection then has; None: the address.
GREETINGS = [
    (hello(host(b"a.example")), "a.example"),
    (hello(host(b"a.example"))[:-4], None),  # cut within the name
    (hello(host(b"a.example"))[:60], None),
    (hello(host(b"a.example"))[:5], None),
    (hello(host(b"a.example"), kind=1), None),
    (hello(host(b"")), None),
    (hello(host(b"a.example", 60_000)), None),
    (hello(host(b"x" * 255)), "x" * 255),
    (hello(host(b"x" * 256)), None),
    (hello(host(b"a/../b")), None),
    (hello(host(b"a\n.example")), None),
    (hello(host(b"a\0.example")), None),
    (b"\x16\3\1" + b"\xff" * 300, None),
    (b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", None),
]
GREETER = """
import os, socket, sys
for n, data in enumerate(eval(sys.argv[2])):
    # An address of its own for each, as a name stays with its address.
    with socket.socket() as peer:
        peer.connect((f"127.0.1.{n + 1}", int(sys.argv[1])))
        if n % 3 == 0:
            peer.sendall(data)
        elif n % 3 == 1:
            os.write(peer.fileno(), data)
        else:
            peer.sendmsg([data, b""])
        peer.recv(1)
"""


def test_a_hello_that_is_cut_or_hostile_names_nothing(recorded_command: Callable[..., Any]) -> None:
    listener = socket.create_server(("", 0), backlog=64)

    def serve() -> None:
        for _ in GREETINGS:
            peer, _ = listener.accept()
            with peer:
                peer.recv(10_000)
                peer.sendall(b"!")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    data = repr([greeting for greeting, _ in GREETINGS])
    run = recorded_command([sys.executable, "-c", GREETER, str(port), data])
    thread.join()
    listener.close()
    found = dict(run.sql("SELECT peer_address, endpoint FROM connections").fetchall())
    assert found == {
        f"127.0.1.{n}": f"{name or f'127.0.1.{n}'}:{port}"
        for n, (_, name) in enumerate(GREETINGS, 1)
    }


# A server that goes before its client, on the same CPU: the client loses the CPU inside its send.
FIRST = """
import os, socket, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    for _ in range(int(sys.argv[1])):
        peer, _ = listener.accept()
        while peer.recv(1000):
            end = time.monotonic() + 0.003
            while time.monotonic() < end:
                pass
            peer.send(b"answer")
"""


def test_a_call_that_loses_its_cpu_is_no_wait_for_the_network(
    recorded: Callable[..., Any],
) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", FIRST, "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    port = server.stdout.readline().strip()
    if not port:
        pytest.skip("no process may go before others here")
    try:
        run = recorded(f"""
            import os, socket
            os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
            for is_blocking in (True, False):
                with socket.create_connection(("127.0.0.1", {port})) as to:
                    to.settimeout(None if is_blocking else 20)
                    for _ in range(10):
                        to.send(b"ask" * 100)
                        assert to.recv(100) == b"answer"
        """)
        server.wait(60)
    finally:
        server.kill()
    sends = "SELECT count(*) FROM blocked WHERE op = 'send' OR phase = 'send'"
    assert run.sql(sends).fetchall() == [(0,)]
    assert run.sql("SELECT sum(waited_send_ns) FROM connections").fetchall() == [(0,)]


HANDSHAKE = """
import json, socket, ssl, sys, time
context = ssl._create_unverified_context()
context.minimum_version = context.maximum_version = ssl.TLSVersion[sys.argv[2]]
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as plain:
    start = time.perf_counter()
    with context.wrap_socket(plain, server_hostname="data.example.org") as peer:
        took_s = time.perf_counter() - start
        time.sleep(0.3)  # the client's own time is none of the handshake's
        for _ in range(2):
            peer.sendall(b"ask")
            assert peer.recv(100) == b"answer"
json.dump(took_s, open("took", "w"))
"""
HANDSHAKE_BY_CURL = """
import json, subprocess, sys
url = f"https://127.0.0.1:{sys.argv[1]}/data/1"
form = "%{time_connect} %{time_appconnect}"
command = ["curl", "-sk", "-o", "/dev/null", "-w", form, "--http0.9", "-m", "3", url]
done = subprocess.run(command, stdout=subprocess.PIPE)
connected_s, shaken_s = map(float, done.stdout.split())
json.dump(shaken_s - connected_s, open("took", "w"))
"""


@contextmanager
def slow_to_greet(certificate: Path) -> Iterator[int]:
    """A TLS server that begins each handshake after 0.1 s and answers each request after 0.2 s."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                accepted, _ = listener.accept()
                time.sleep(0.1)
                with context.wrap_socket(accepted, server_side=True) as peer:
                    while peer.recv(1000):
                        time.sleep(0.2)
                        peer.sendall(b"answer")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)


@pytest.mark.parametrize(
    ("program", "version"),
    [(HANDSHAKE, "TLSv1_3"), (HANDSHAKE, "TLSv1_2"), (HANDSHAKE_BY_CURL, "")],
    ids=["1.3", "1.2", "curl"],
)
def test_a_handshake_has_its_own_time(
    program: str,
    version: str,
    recorded_command: Callable[..., Any],
    work: Path,
    made_once: Callable[..., Path],
) -> None:
    if program == HANDSHAKE_BY_CURL and not shutil.which("curl"):
        pytest.skip("there is no curl")
    certificate = made_once(("certificate.pem",), make_certificate)
    with slow_to_greet(certificate) as port:
        run = recorded_command([sys.executable, "-c", program, str(port), version])
    took_s = json.loads((work / "took").read_text())
    [(handshake_ns,)] = run.sql("SELECT handshake_ns FROM connections").fetchall()
    assert took_s > 0.1
    assert handshake_ns / 1e9 == pytest.approx(took_s, abs=0.03)


def test_a_connection_without_tls_has_no_handshake(
    known: tuple[Any, Any, dict[str, list[Any]]],
) -> None:
    run, _, _ = known
    assert run.sql("SELECT count(handshake_ns) FROM connections").fetchall() == [(0,)]
