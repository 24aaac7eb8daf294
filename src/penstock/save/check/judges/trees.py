"""Check the length of the models of gradient boosting and of Julia: XGBoost's UBJSON, CatBoost's
`.cbm`, and the superblock of a JLD2 file.  Reads lengths only."""

from typing import BinaryIO, Final

from penstock.save.check.foreign import Damage, Scope, Unended
from penstock.save.check.judges.stream import Stream, Unfollowed, unfollowed

__all__ = ["CBM", "check_cbm", "check_jld2", "check_ubjson"]

# The first bytes of a CatBoost model; then the length of the trees, of four bytes.  The tables of
# categorical features follow, without a length.
CBM: Final = b"CBM1"
MOST_VALUES = 20_000_000  # about 15 s; XGBoost writes its arrays as one value each
MOST_DEPTH = 100
# By the type of a UBJSON value: the bytes of a number.  Source: ubjson.org, "Type Reference".
_SIZES: Final = {b"Z": 0, b"N": 0, b"T": 0, b"F": 0, b"i": 1, b"U": 1, b"C": 1, b"I": 2, b"l": 4,
                 b"L": 8, b"d": 4, b"D": 8}  # fmt: skip
_COUNTS: Final = {b"i": 1, b"U": 1, b"I": 2, b"l": 4, b"L": 8}
_JLD2: Final = b"\x89HDF\r\n\x1a\n"
_JLD2_HEAD = 512  # bytes before the superblock


def check_ubjson(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check that the file's first value ends at the end of the file.  Raises Damage."""
    scope.unprotected_bytes += size_bytes
    stream = Stream(file, name, "UBJSON", 0, size_bytes)
    try:
        _follow(stream)
    except Unfollowed as why:
        unfollowed(name, scope, str(why))
        return
    if stream.left_bytes:
        raise Damage(
            f"{name}: {size_bytes:,} bytes, and its value ends at {stream.place:,}: more follows"
        )


def _follow(stream: Stream) -> None:
    """Skip a value with all values inside.  Raises Damage, Unfollowed."""
    # The open containers: whether names are inside, the values to come (-1: up to the end mark),
    # and the common type.
    stack = list[tuple[bool, int, bytes]]()
    for _ in range(MOST_VALUES):
        kind = _kind_of_next(stream, stack)
        if kind in (b"{", b"["):
            stack.append(_opened(stream, kind == b"{"))
            if len(stack) > MOST_DEPTH:
                raise Unfollowed(f"more than {MOST_DEPTH} levels")
        elif kind in (b"S", b"H"):
            stream.skip(_count(stream, stream.take(1)))
        elif kind in _SIZES:
            stream.skip(_SIZES[kind])
        elif kind:
            raise stream.damage(f"no value at byte {stream.place - 1:,}: damaged")
        while stack and stack[-1][1] == 0:
            stack.pop()
        if not stack:
            return
    raise Unfollowed(f"more than {MOST_VALUES:,} values")


def _kind_of_next(stream: Stream, stack: list[tuple[bool, int, bytes]]) -> bytes:
    """Return the type of the next value; empty: the container has ended.  Raises Damage."""
    if not stack:
        return stream.take(1)
    has_names, left, kind = stack[-1]
    mark = stream.take(1) if has_names or not kind else b""
    if left < 0 and mark == (b"}" if has_names else b"]"):
        stack[-1] = has_names, 0, kind
        return b""
    stack[-1] = has_names, left - 1 if left > 0 else left, kind
    if has_names:
        stream.skip(_count(stream, mark))
        return kind or stream.take(1)
    return kind or mark


def _opened(stream: Stream, has_names: bool) -> tuple[bool, int, bytes]:
    """Read the head of a container.  An array of numbers of one type is skipped."""
    kind, left = b"", -1
    mark = stream.take(1)
    if mark == b"$":
        kind = stream.take(1)
        mark = stream.take(1)
        if mark != b"#":
            raise stream.damage(f"no count at byte {stream.place - 1:,}: damaged")
    if mark == b"#":
        left = _count(stream, stream.take(1))
        if kind in _SIZES and not has_names:
            stream.skip(left * _SIZES[kind])
            left = 0
    else:
        stream.back(1)
    return has_names, left, kind


def _count(stream: Stream, kind: bytes) -> int:
    if kind not in _COUNTS:
        raise stream.damage(f"no length at byte {stream.place - 1:,}: damaged")
    number = stream.number(_COUNTS[kind], "big")
    if number > stream.left_bytes:  # also a negative number
        raise stream.cut()
    return number


def check_cbm(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Compare the length of the trees with the file's size.  Raises Damage."""
    scope.unprotected_bytes += size_bytes
    stream = Stream(file, name, "CatBoost", 0, size_bytes)
    stream.skip(len(CBM))
    stream.skip(stream.number(4))
    if stream.left_bytes:
        scope.by_name[name] = None
        scope.remarks[f"{name}: tables of {stream.left_bytes:,} bytes without a length"] = None


def check_jld2(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Compare the end of the file in the superblock, which Julia writes last, with the file's size.
    Raises Damage."""
    scope.unprotected_bytes += size_bytes
    stream = Stream(file, name, "JLD2", 0, size_bytes)
    if _JLD2 not in (stream.take(len(_JLD2)), _at(stream, _JLD2_HEAD)):
        raise Unended(f"{name}: no superblock: cut short, damaged or never closed")
    version, offset_bytes = stream.take(2)
    if version not in (2, 3) or offset_bytes != 8:
        unfollowed(name, scope, f"superblock version {version}")
        return
    stream.skip(2 + 2 * offset_bytes)
    end = stream.number(offset_bytes)
    if size_bytes not in (end, end + _JLD2_HEAD):  # counted from the file or from the superblock
        raise Unended(
            f"{name}: {size_bytes:,} bytes, and its superblock ends at {end:,}: not ended"
        )


def _at(stream: Stream, place: int) -> bytes:
    stream.skip(place - stream.place)
    return stream.take(len(_JLD2))
