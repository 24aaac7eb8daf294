"""Each connection asks its server for bytes in one way; prints NAME, its own port, the asks, and
bytes sent and received beyond what the server of the connection counts.

connections_known.py PORT      see netservers.counting_server
"""

import asyncio
import os
import select
import socket
import struct
import sys

PORT = int(sys.argv[1])
ASK = struct.Struct("<III")
SIZE, FIRST_MS, BETWEEN_MS = 100_000, 30, 20
QUESTION = ASK.pack(SIZE, FIRST_MS, BETWEEN_MS)


def opened() -> socket.socket:
    return socket.create_connection(("localhost", PORT))


def told(name: str, port: int, asks: int = 1) -> None:
    print(name, port, asks, flush=True)


def until_whole(receive) -> None:
    left = SIZE
    while left:
        left -= receive(left)


def by_recv() -> None:
    with opened() as to:
        for _ in range(3):
            to.sendall(QUESTION)
            until_whole(lambda left: len(to.recv(left)))
        told("recv", to.getsockname()[1], 3)


def by_recv_into() -> None:
    room = bytearray(SIZE)
    with opened() as to:
        to.sendmsg([QUESTION[:4], QUESTION[4:]])
        until_whole(lambda left: to.recv_into(room, left))
        told("recv_into", to.getsockname()[1])


def by_recvmsg() -> None:
    with opened() as to:
        to.send(QUESTION)
        until_whole(lambda left: len(to.recvmsg(left)[0]))
        told("recvmsg", to.getsockname()[1])


def by_waitall() -> None:
    with opened() as to:
        to.send(QUESTION)
        assert len(to.recv(SIZE, socket.MSG_WAITALL)) == SIZE
        told("waitall", to.getsockname()[1])


def by_peek() -> None:
    with opened() as to:
        to.send(QUESTION)
        assert to.recv(1000, socket.MSG_PEEK)
        until_whole(lambda left: len(to.recv(left)))
        told("peek", to.getsockname()[1])


def by_read() -> None:
    with opened() as to:
        os.write(to.fileno(), QUESTION[:4])
        os.writev(to.fileno(), [QUESTION[4:]])
        until_whole(lambda left: len(os.read(to.fileno(), left)))
        told("read", to.getsockname()[1])


def by_readv() -> None:
    room = bytearray(SIZE)
    with opened() as to:
        to.send(QUESTION)
        until_whole(lambda left: os.readv(to.fileno(), [memoryview(room)[:left]]))
        told("readv", to.getsockname()[1])


def by_sendfile() -> None:
    with open("question", "wb") as file:
        file.write(QUESTION)
    with opened() as to, open("question", "rb") as file:
        assert os.sendfile(to.fileno(), file.fileno(), 0, len(QUESTION)) == len(QUESTION)
        until_whole(lambda left: len(to.recv(left)))
        told("sendfile", to.getsockname()[1])


def by_poll(name: str, wait) -> None:
    with opened() as to:
        to.setblocking(False)
        to.send(QUESTION)
        left = SIZE
        while left:
            wait(to)
            left -= len(to.recv(left))
        told(name, to.getsockname()[1])


def polled(to: socket.socket) -> None:
    waiting = select.poll()
    waiting.register(to, select.POLLIN)
    waiting.poll()


def epolled(to: socket.socket) -> None:
    with select.epoll() as waiting:
        waiting.register(to, select.EPOLLIN)
        waiting.poll()


def by_timeout() -> None:
    with opened() as to:
        to.settimeout(20)
        to.sendall(QUESTION)
        until_whole(lambda left: len(to.recv(left)))
        told("timeout", to.getsockname()[1])


def by_dup() -> None:
    with opened() as to, to.dup() as copy:
        to.send(QUESTION)
        assert to.recv(10)
        left = SIZE - 10
        while left:
            left -= len(copy.recv(left))
        told("dup", to.getsockname()[1])


async def by_asyncio() -> None:
    async def get() -> int:
        reader, writer = await asyncio.open_connection("localhost", PORT)
        writer.write(QUESTION)
        await reader.readexactly(SIZE)
        port = writer.get_extra_info("sockname")[1]
        writer.close()
        await writer.wait_closed()
        return port

    for port in await asyncio.gather(get(), get(), get()):
        told("asyncio", port)


def refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    try:
        socket.create_connection(("127.0.0.1", port))
    except ConnectionRefusedError:
        told("refused", port, 0)


def left_open() -> None:
    to = opened()
    to.sendall(QUESTION)
    until_whole(lambda left: len(to.recv(left)))
    told("left open", to.getsockname()[1])
    os._exit(0)


by_recv()
by_recv_into()
by_recvmsg()
by_waitall()
by_peek()
by_read()
by_readv()
by_sendfile()
by_poll("poll", polled)
by_poll("select", lambda to: select.select([to], [], []))
by_poll("epoll", epolled)
by_timeout()
by_dup()
asyncio.run(by_asyncio())
refused()
left_open()
