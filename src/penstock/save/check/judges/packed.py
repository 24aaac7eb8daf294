"""Check whether a msgpack file is exactly one object, as flax.serialization writes the file,
whether a gzip file matches the length and the CRC-32 at the end of each member, and whether the
blocks of a Zstandard file end at the end of the file."""

import zlib
from typing import BinaryIO, Final

from penstock.save.check.foreign import Damage, Scope, Unended
from penstock.save.check.judges.stream import Stream, Unfollowed, unfollowed

__all__ = ["GZIP", "check_gzip", "check_msgpack", "check_zstd"]

GZIP = b"\x1f\x8b"
# Most bytes that a check unpacks: 0.3 s and 1.5 s; larger files are unchecked.
MOST_UNPACKED_BYTES: Final = {"sizes": 64 << 20, "sample": 256 << 20, "full": 1 << 40}
BLOCK_BYTES = 1 << 20
MOST_OBJECTS = 20_000_000  # about 15 s; Flax has one object per array and two per name

# By the first byte of an object: the number of bytes that follow; or the number of bytes of a
# length field, and the unit of the length.  Source: github.com/msgpack/msgpack/blob/master/spec.md
_PLAIN: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1,
    0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPPINGS: Final = {0xDE: 2, 0xDF: 4}


def check_gzip(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Unpack all members, and check the length and CRC-32 at each member's end.  Raises Damage."""
    most, unpacked = MOST_UNPACKED_BYTES[scope.level], 0
    member, data = zlib.decompressobj(31), b""
    try:
        while data or (data := file.read(BLOCK_BYTES)):
            if member.eof:
                if not any(data):  # zeros after the end
                    data = b""
                    continue
                member = zlib.decompressobj(31)
            unpacked += len(member.decompress(data, BLOCK_BYTES))
            data = member.unused_data if member.eof else member.unconsumed_tail
            if unpacked > most:
                scope.unprotected_bytes += size_bytes
                unfollowed(name, scope, f"more than {most:,} bytes when unpacked")
                return
    except zlib.error as error:
        raise Damage(f"{name}: cannot be unpacked: damaged") from error
    if not member.eof:
        raise Unended(f"{name}: no end in {size_bytes:,} bytes: cut short")
    scope.add(size_bytes)


# Source: RFC 8878, sections 3.1.1 and 3.1.2.
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = b"\x2a\x4d\x18"
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SINGLE, _CHECKSUM, _RLE, _RESERVED = 0x20, 0x04, 1, 3
MOST_BLOCKS = 10_000_000


def check_zstd(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Follow the lengths of all frames and blocks, without unpacking.  Raises Damage."""
    stream = Stream(file, name, "Zstandard", 0, size_bytes)
    n_left = MOST_BLOCKS
    while stream.left_bytes:
        magic = stream.take(4)
        if magic[1:] == _SKIPPABLE and 0x50 <= magic[0] <= 0x5F:
            stream.skip(stream.number(4, "little"))
        elif magic != _ZSTD:
            raise stream.damage(f"no frame at byte {stream.place - 4:,}: damaged")
        else:
            n_left -= _skip_frame(stream, n_left)
    scope.unprotected_bytes += size_bytes


def _skip_frame(stream: Stream, most: int) -> int:
    """Skip the rest of a frame; return the number of blocks.  Raises Damage."""
    mark = stream.number(1, "little")
    is_single = bool(mark & _SINGLE)
    size_code = mark >> 6
    n_bytes = _DICTIONARY_BYTES[mark & 3] + (not is_single)
    stream.skip(n_bytes + (1 << size_code if size_code or is_single else 0))
    for number in range(most):
        block = stream.number(3, "little")
        kind, length = block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            raise stream.damage(f"no block at byte {stream.place - 3:,}: damaged")
        stream.skip(1 if kind == _RLE else length)
        if block & 1:
            stream.skip(4 if mark & _CHECKSUM else 0)
            return number + 1
    raise stream.damage(f"more than {MOST_BLOCKS:,} blocks")


def check_msgpack(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check that the file's first object ends at the end of the file.  Raises Damage."""
    scope.unprotected_bytes += size_bytes
    stream = Stream(file, name, "msgpack", 0, size_bytes)
    waiting = 1  # objects still to come; containers need no stack
    try:
        for _ in range(MOST_OBJECTS):
            waiting += _children(stream) - 1
            if not waiting:
                break
            if waiting > stream.left_bytes:  # each object has at least a byte
                raise stream.cut()
        else:
            raise Unfollowed(f"more than {MOST_OBJECTS:,} objects")
    except Unfollowed as why:
        unfollowed(name, scope, str(why))
        return
    if stream.left_bytes:
        raise Damage(
            f"{name}: {size_bytes:,} bytes, and its object ends at {stream.place:,}: more follows"
        )


def _children(stream: Stream) -> int:
    """Skip an object's own bytes; return the number of objects inside.  Raises Damage."""
    at = stream.place
    code = stream.take(1)[0]
    if code < 0x80 or code >= 0xE0:
        return 0
    if code < 0x90:
        return 2 * (code & 0x0F)
    if code < 0xA0:
        return code & 0x0F
    if code < 0xC0:
        stream.skip(code & 0x1F)
    elif code in _PLAIN:
        stream.skip(_PLAIN[code])
    elif code in _BYTES:
        stream.skip(stream.number(_BYTES[code], "big"))
    elif code in _EXTENSIONS:
        stream.skip(stream.number(_EXTENSIONS[code], "big") + 1)
    elif code in _ARRAYS:
        return stream.number(_ARRAYS[code], "big")
    elif code in _MAPPINGS:
        return 2 * stream.number(_MAPPINGS[code], "big")
    else:
        raise stream.damage(f"no object at byte {at:,}: damaged")
    return 0
