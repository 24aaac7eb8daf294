"""Writes an LMDB of data version 1 with pages of any size, page by page.  Shares no code with the
reader; that liblmdb reads the same is checked where it is used."""

import struct
from collections.abc import Mapping
from pathlib import Path

HEADER = 16
BIG, LEAF, BRANCH, OVERFLOW, META = 1, 2, 1, 4, 8


def write(path: Path, records: Mapping[bytes, bytes], page_bytes: int) -> None:
    pages: dict[int, bytes] = {}
    level: list[tuple[bytes, int]] = []
    counts = {"branch": 0, "leaf": 0, "overflow": 0}
    nodes: list[bytes] = []
    first = b""

    def place(data: bytes) -> int:
        number = 2 + len(pages)
        pages[number] = data
        return number

    def close(kind: int, first: bytes) -> None:
        number = 2 + len(pages)
        level.append((first, place(_page(number, kind, nodes, page_bytes))))
        nodes.clear()

    for key in sorted(records):
        value = records[key]
        flags, data = 0, value
        if 8 + len(key) + len(value) > page_bytes // 2 - 10:
            number = 2 + len(pages)
            n_pages = (HEADER - 1 + len(value)) // page_bytes + 1
            run = struct.pack("<QHHI", number, 0, OVERFLOW, n_pages) + value
            run += bytes(n_pages * page_bytes - len(run))
            for start in range(0, len(run), page_bytes):
                place(run[start : start + page_bytes])
            counts["overflow"] += n_pages
            flags, data = BIG, struct.pack("<Q", number)
        node = struct.pack("<IHH", len(value), flags, len(key)) + key + data
        node += bytes(len(node) % 2)
        if _bytes([*nodes, node]) > page_bytes:
            close(LEAF, first)
        first = first if nodes else key
        nodes.append(node)
    if nodes:
        close(LEAF, first)
    counts["leaf"], depth = len(level), 1 if level else 0
    while len(level) > 1:
        under, depth = list(level), depth + 1
        level.clear()
        first = b""
        for key, child in under:
            node_key = key if nodes else b""
            node = struct.pack("<IHH", child & 0xFFFFFFFF, child >> 32, len(node_key)) + node_key
            node += bytes(len(node) % 2)
            if _bytes([*nodes, node]) > page_bytes:
                close(BRANCH, first)
                node = struct.pack("<IHH", child & 0xFFFFFFFF, child >> 32, 0)
            first = first if nodes else key
            nodes.append(node)
        close(BRANCH, first)
        counts["branch"] += len(level)
    root = level[0][1] if level else (1 << 64) - 1
    main = (0, 0, depth, counts["branch"], counts["leaf"], counts["overflow"], len(records), root)
    whole = [_meta(number, main, len(pages), page_bytes) for number in (0, 1)]
    path.write_bytes(b"".join([*whole, *(pages[number] for number in sorted(pages))]))


def _bytes(nodes: list[bytes]) -> int:
    return HEADER + sum(2 + len(node) for node in nodes)


def _page(number: int, kind: int, nodes: list[bytes], page_bytes: int) -> bytes:
    offsets, at = [], page_bytes
    for node in nodes:
        at -= len(node)
        offsets.append(at)
    head = struct.pack("<QHHHH", number, 0, kind, HEADER + 2 * len(nodes), at)
    head += struct.pack(f"<{len(nodes)}H", *offsets)
    return head + bytes(at - len(head)) + b"".join(reversed(nodes))


def _meta(number: int, main: tuple[int, ...], n_pages: int, page_bytes: int) -> bytes:
    txnid = 1 if number == 1 else 0
    free = struct.pack("<IHHQQQQQ", page_bytes, 0, 0, 0, 0, 0, 0, (1 << 64) - 1)
    data = struct.pack("<QHHI", number, 0, META, 0)
    data += struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 30)
    data += free + struct.pack("<IHHQQQQQ", *main) + struct.pack("<QQ", n_pages + 1, txnid)
    return data + bytes(page_bytes - len(data))
