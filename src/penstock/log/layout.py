"""The bytes of a log: units, blocks, events, and the numbers of calls.  Reads nothing."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.log.texts import (
    UNIT_BYTES,
)

__all__ = [
    "ACCESS",
    "ANCHOR_NS",
    "BATCH_UNITS",
    "BLOCK",
    "CALL",
    "CALLS",
    "CARRIED",
    "CLOCKS",
    "CONNECTION",
    "CONNECTION_FLAGS",
    "EVENT",
    "HEADER",
    "INDEX",
    "IN_FLIGHT",
    "LONG_BIT",
    "LONG_SHIFT",
    "NOT_KNOWN",
    "OPS",
    "ORIGINS",
    "OUTCOMES",
    "PHASES",
    "REQUEST",
    "REQUEST_FLAGS",
    "REST",
    "REST_OP",
    "SECOND_FILE_OPS",
    "STATES",
    "TEXT",
    "TIME_LIMIT_NS",
    "Array",
    "Op",
]

Array = NDArray[Any]
REST_OP = 255
LONG_BIT, LONG_SHIFT = 39, 16
IN_FLIGHT = -1
NOT_KNOWN = 0xFFFFFFFF
STATES = {1: "running", 2: "stopped", 3: "exited", 4: "execed", 5: "failed"}
ORIGINS = {1: "run", 2: "record", 3: "fork", 4: "exec", 5: "attach"}
CLOCKS = {0: "ns", 1: "tsc"}


# The kinds of waits of a thread at a connection.
PHASES = {1: "connect", 2: "send", 3: "first byte", 4: "transfer"}
CONNECTION_FLAGS = {"accepted": 1, "earlier": 2, "copy": 4}
REQUEST_FLAGS = {"part": 1, "failed": 2, "folded": 4, "operation": 8}


# Outcomes of opening a file with a copy on a tier.
OUTCOMES = {
    1: "served",
    2: "changed",
    3: "dropped",
    4: "absent",
    5: "gone",
    6: "damaged",
    7: "direct",
    8: "denied",
    9: "written",
}


# Units read at once: 4 MiB, more than any disk's best request and small beside the tables' buffers.
BATCH_UNITS = 64


# No host is up for 18 years: a later time is damage, and is cut, so sums stay in 64 bits.
TIME_LIMIT_NS = 1 << 59


# Two anchors at least ANCHOR_NS apart fix the clock's rate better than the nominal rate, measured
# by the recorder over a millisecond.
ANCHOR_NS = 10_000_000


def _layout(*fields: str) -> np.dtype[Any]:
    """Return a packed little-endian struct from lines of `kind name name …`."""
    kinds = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "u64": "<u8", "i64": "<i8"}
    names = [(name, line.split()[0]) for line in fields for name in line.split()[1:]]
    return np.dtype([(name, kinds.get(kind, kind)) for name, kind in names])


HEADER = _layout(
    "S8 magic",
    "u32 version header_bytes unit_bytes event_bytes pid ppid clock origin state",
    "i32 error",
    "u64 units start_ticks start_ns start_unix_ns last_ticks last_ns ticks_per_s",
    "u64 budget_bytes chunk_bytes folded lost unseen attach_ns",
    "u32 slots objects slots_failed rank local_rank world_size",
    "V16 boot_id",
    "V64 host",
    "V192 reason",
    "V512 executable folder",
    "V2048 command",
    "(16,)<u8 opens",
    "u64 waits_from_ns own_calls own_ticks",
)


BLOCK = _layout(
    "u32 magic kind",
    "u64 round",
    "u32 used limit texts thread tid carried",
    "u64 first",
    "V16 name",
)


EVENT = _layout("u64 begun done", "i64 offset", "u32 asked moved")
REST = _layout("u64 mark start asked moved")
TEXT = _layout("u32 bytes kind id base mode tier", "u64 device inode", "i64 size")
CONNECTION = _layout(
    "u64 number opened connected closed told received sent receives sends answers",
    "u64 first_byte transfer",
    "(5,)<u8 waited",
    "u64 kernel_received kernel_sent",
    "u32 rtt_us rtt_min_us retransmits flags fd object",
    "u16 local_port peer_port",
    "u32 summed",
    "V16 local peer",
    "u64 handshake",
)
REQUEST = _layout(
    "u64 number told connection ago first_byte duration received",
    "i64 sent range_first range_length object_bytes",
    "u64 backoff requests",
    "i64 batch",
    "u32 tid",
    "u16 status attempt",
    "u32 flags unused",
)
PAIR = _layout("i64 value", "u64 calls")
CALLS = _layout("u32 file op", "u64 calls errors ticks max_ticks first last asked moved")


ACCESS = np.dtype(
    [
        *_layout(
            "u32 file op",
            "u64 calls errors ticks max_ticks first last asked moved max_ticks_bytes",
            "i64 max_end first_offset last_end",
            "u64 sequential consecutive switches unaligned empty",
        ).descr,
        ("buckets", "<u8", (10,)),
        ("sizes", PAIR, (4,)),
        ("strides", PAIR, (4,)),
    ]
)


EVENTS_PER_UNIT = (UNIT_BYTES - BLOCK.itemsize) // EVENT.itemsize


# A row for each kept block: the position, and the number of whole records.
INDEX = _layout(
    "i64 unit records",
    "u32 kind texts thread tid carried",
    "u64 round first",
    "V16 name",
)


CARRIED = _layout("u64 key first")


class Op(NamedTuple):
    """A recorded call: the number on disk, the layer, and the cause assigned to waits in the
    call."""

    number: int
    name: str
    layer: str
    group: str


def _ops(layer: str, group: str, **numbers: int) -> list[Op]:
    return [Op(number, name, layer, group) for name, number in numbers.items()]


# Numbers are never reused.
OPS: tuple[Op, ...] = tuple(
    sorted(
        [
            *_ops("posix", "read", read=3, pread=5, readv=7, preadv=9),
            *_ops("posix", "read", sendfile=36, copy_range=37, splice=38, aio_read_done=44),
            *_ops("posix", "write", write=4, pwrite=6, writev=8, pwritev=10, aio_write_done=45),
            *_ops("posix", "write", fsync=21, fdatasync=22, sync_range=23, syncfs=24, msync=35),
            *_ops("posix", "metadata", open=1, close=2, lseek=11, dup=41),
            *_ops("posix", "metadata", stat=12, fstat=13, lstat=14, access=15, readlink=16),
            *_ops("posix", "metadata", opendir=17, readdir=18, closedir=19, list=20),
            *_ops("posix", "metadata", truncate=25, fallocate=26, rename=27, unlink=28, chmod=47),
            *_ops("posix", "metadata", mkdir=29, rmdir=30, link=31, symlink=32),
            *_ops("posix", "metadata", mmap=33, munmap=34, fadvise=39, readahead=40),
            *_ops("posix", "metadata", aio_read=42, aio_write=43, io_uring=46),
            *_ops("posix", "metadata", cufile_submit=50),
            *_ops("posix", "read", cufile_read=48),
            *_ops("posix", "write", cufile_write=49),
            *_ops("stdio", "metadata", fopen=64, fdopen=65, freopen=66, fclose=67, fseek=70),
            *_ops("stdio", "read", fread=68),
            *_ops("stdio", "write", fwrite=69, fflush=71),
            *_ops("process", "process", fork=96, exec=97, spawn=98),
            *_ops("process", "account", account=99),
            *_ops("wait", "wait", sem_wait=104, cond_wait=105, futex=106, poll=107, select=108),
            *_ops("wait", "wait", epoll=109, waitpid=111, join=112, mutex=113, barrier=114),
            *_ops("wait", "wait", receive=115, signal=116, send=119, resolve=120),
            *_ops("wait", "sleep", sleep=110),
            *_ops("wait", "sync", sync=117),
            *_ops("wait", "exchange", collective=118),
            *_ops("app", "app", window=128, step=129, span=130),
        ]
    )
)


# Their `offset` is no offset but the id of the file at the other end.
SECOND_FILE_OPS = ("rename", "link", "sendfile", "copy_range", "splice")


# Follower's record of an event until the clock's rate is known.
CALL = np.dtype(
    [
        *_layout("u64 start ticks", "i64 offset asked moved", "u32 file thread").descr,
        ("op", "u1"),
        ("errno", "u1"),
    ]
)
