"""Random changes of bytes.  The module knows no format, but corrects checksums, so that readers
accept a changed file, and changes zlib streams inside."""

import random
import struct
import zlib
from collections.abc import Callable, Sequence

Mutator = Callable[[random.Random, bytes], bytes]

INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 4096, 65535, 65536, 1 << 31, (1 << 31) - 1,
               (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
WORDS = (b"0", b"-1", b"1e309", b"NaN", b"null", b"true", b"{}", b"[]", b'""', b"[" * 50, b"{" * 50,
         b"../", b"/dev/zero", b"\\u0000", b"\xff\xfe", b"\x1b[2J", b"9" * 40, b"1" * 400,
         b"1" * 5000,
         b'{"a":' * 40, b"<script>", b"=cmd", b"\n", b"\0", b",")  # fmt: skip


def plain(draws: random.Random, data: bytes) -> bytes:
    """Return data with one to eight changes: bits, bytes, numbers, words, moved pieces."""
    changed = bytearray(data)
    for _ in range(1 << draws.randrange(4)):
        _change(draws, changed)
    return bytes(changed[: 1 << 20])


def _change(draws: random.Random, data: bytearray) -> None:
    size = len(data)
    at = draws.randrange(size + 1)
    kind = draws.randrange(9)
    if not size or kind == 0:
        data[at:at] = draws.choice(WORDS)
    elif kind == 1:
        data[at % size] ^= 1 << draws.randrange(8)
    elif kind == 2:
        data[at % size] = draws.randrange(256)
    elif kind == 3:
        form = draws.choice(("<B", "<H", "<I", "<Q", ">H", ">I", ">Q"))
        number = draws.choice(INTERESTING) + draws.randrange(-2, 3)
        piece = struct.pack(form, number % (1 << 8 * struct.calcsize(form)))
        data[at : at + len(piece)] = piece
    elif kind == 4:
        word = draws.choice(WORDS)
        data[at : at + len(word)] = word
    elif kind == 5:
        del data[at : at + (1 << draws.randrange(12))]
    elif kind == 6:
        length, to = 1 << draws.randrange(12), draws.randrange(size + 1)
        data[to:to] = data[at : at + length]
    elif kind == 7:
        length, to = 1 << draws.randrange(10), draws.randrange(size + 1)
        data[to : to + length] = data[at : at + length]
    else:
        del data[at:]


def sealed(seal: Callable[[bytes], bytes]) -> Mutator:
    """Return a mutator that corrects the checksums in most results."""

    def mutate(draws: random.Random, data: bytes) -> bytes:
        changed = plain(draws, data)
        if draws.random() < 0.1:
            return changed
        try:
            return seal(changed)
        except Exception:  # no longer of a shape that can be sealed
            return changed

    return mutate


def inside_zlib(draws: random.Random, data: bytes) -> bytes:
    """Change a zlib stream of a file with the places of the streams in the head, like Darshan's;
    sometimes change any byte."""
    streams = _streams(data)
    if not streams or draws.random() < 0.15:
        return plain(draws, data)
    offset, size, content = draws.choice(streams)
    packed = zlib.compress(plain(draws, content), 1)
    head, later = bytearray(data[:offset]), data[offset + size :]
    grown = len(packed) - size
    for at in range(0, min(len(head), 2048) - 15, 8):
        begin, length = struct.unpack_from("<QQ", head, at)
        if begin == offset and length == size:
            struct.pack_into("<QQ", head, at, begin, len(packed))
        elif offset < begin < len(data) and begin + length <= len(data):
            struct.pack_into("<Q", head, at, begin + grown)
    return bytes(head) + packed + later


def _streams(data: bytes) -> Sequence[tuple[int, int, bytes]]:
    found, at = [], 0
    while (at := data.find(b"\x78", at)) >= 0:
        unpacking = zlib.decompressobj()
        try:
            content = unpacking.decompress(data[at:], 1 << 22)
        except zlib.error:
            at += 1
            continue
        if unpacking.eof and content:
            size = len(data) - at - len(unpacking.unused_data)
            found.append((at, size, content))
            at += size
        else:
            at += 1
    return found
