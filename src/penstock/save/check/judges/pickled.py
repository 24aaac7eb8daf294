"""Check by lengths whether a pickle file, or a torch.save file from before 1.6, is complete.

Nothing is unpickled: operations are skipped by the lengths of the arguments.  torch's older format
is a pickle that names storages, followed by the length and the bytes of each storage.  The
check compares the lengths with the pickle's lengths and reads no value of a tensor.
"""

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from penstock.save.check.foreign import Damage, Scope, Unended
from penstock.save.check.judges.stream import Stream, Unfollowed, unfollowed
from penstock.save.check.pickles import PickleMachine, Refused, inert, pairs_of

__all__ = ["Budget", "check_pickles", "end_of_pickle", "is_pickle"]

TORCH_MAGIC = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
# For the pickle of a torch file; the pickle of 10,000 tensors has 1.5 MB.
MOST_PICKLE_BYTES = 64 << 20
MOST_KEYS = 1_000_000
MOST_LINE_BYTES = 1 << 20
MOST_OPERATIONS = 20_000_000  # about 20 s
JOBLIB = b"NumpyArrayWrapper"  # joblib writes the bytes of arrays between a pickle's operations
JOBLIB_LOOK_BYTES = 1 << 20

# Bytes of an element by the name of the storage's class in torch.storage.
_ITEM_BYTES: Final = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1, "QUInt8": 1,
    "QInt32": 4, "QUInt4x2": 1, "QUInt2x4": 1, "Untyped": 1,
}  # fmt: skip

# The length of an operation's argument: a number of bytes; or, negated, the size of a length field
# before the argument; or a number of lines.  Source: Python's pickletools.py.
_FIXED: Final = {
    code: n
    for codes, n in (
        (b".0122NRQ()]}abdelostu\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98", 0),
        (b"Khq\x80\x82", 1), (b"M\x83", 2), (b"Jjr\x84", 4), (b"G", 8),
    )
    for code in codes
}  # fmt: skip
_COUNTED: Final = {
    code: n
    for codes, n in (
        (b"CU\x8a\x8c", 1), (b"BTX\x8b", 4), (b"\x8d\x8e\x96", 8),
    )
    for code in codes
}  # fmt: skip
_LINES: Final = {code: 2 if code in b"ci" else 1 for code in b"FILPSVgpci"}
_STOP, _FRAME = ord("."), 0x95


def is_pickle(head: bytes) -> bool:
    """Return whether a file with this head is a pickle of protocol 2 or newer."""
    return head[:1] == b"\x80" and head[1:2] in (b"", b"\2", b"\3", b"\4", b"\5")


def check_pickles(file: BinaryIO, name: str, size_bytes: int, scope: Scope, start: int = 0) -> None:
    """Check that the last of the file's consecutive pickles or torch.save objects (before 1.6) ends
    at the end of the file.  Raises Damage."""
    scope.unprotected_bytes += size_bytes - start
    place, budget = start, Budget()
    try:
        while place < size_bytes:
            file.seek(place)
            head = file.read(2)
            if place > start and not is_pickle(head):
                raise Damage(
                    f"{name}: {size_bytes:,} bytes, and its pickle ends at {place:,}: more follows"
                )
            if _is_torch(file, place, size_bytes):
                place = _end_of_torch(file, name, place, size_bytes, budget)
                scope.remarks["torch.save's format before torch 1.6: it has no checksums"] = None
            else:
                place = end_of_pickle(file, name, place, size_bytes, budget, scope.level == "full")
        if place == start:
            raise Unended(f"{name}: no pickle in it: cut short")
    except Damage:
        if not _is_joblib(file, start):
            raise
        unfollowed(name, scope, "joblib: array data between a pickle's operations")
    except Unfollowed as why:
        unfollowed(name, scope, str(why))


def _is_joblib(file: BinaryIO, start: int) -> bool:
    file.seek(start)
    return JOBLIB in file.read(JOBLIB_LOOK_BYTES)


# --- lengths of operations ------------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """The budget of operations for all pickles of a file."""

    operations: int = MOST_OPERATIONS


def end_of_pickle(
    file: BinaryIO, name: str, start: int, size_bytes: int, budget: Budget, is_full: bool = True
) -> int:
    """Return the end of a pickle.  is_full: look at every operation; otherwise skip frames by
    length, except the first and last frame of a pickle.

    Raises Damage: the pickle has no end, or has an unknown operation; Unfollowed: over the budget.
    """
    stream = Stream(file, name, "its pickle", start, size_bytes)
    n_frames = 0
    for n_operations in range(1, budget.operations + 1):
        at = stream.place
        code = stream.take(1)[0]
        if code in _FIXED:
            stream.skip(_FIXED[code])
        elif code in _COUNTED:
            stream.skip(int.from_bytes(stream.take(_COUNTED[code]), "little"))
        elif code in _LINES:
            for _ in range(_LINES[code]):
                _skip_line(stream)
        elif code == _FRAME:
            length = int.from_bytes(stream.take(8), "little")
            frame_end, n_frames = stream.place + length, n_frames + 1
            if frame_end > size_bytes:
                raise stream.cut()
            if not is_full and n_frames > 1 and not _is_last(file, frame_end):
                stream.skip(length)
        else:
            raise stream.damage(f"no operation at byte {at:,}: damaged")
        if code == _STOP:
            budget.operations -= n_operations
            return stream.place
    raise Unfollowed(f"pickles of more than {MOST_OPERATIONS:,} operations")


def _skip_line(stream: Stream) -> None:
    """Skip a line.  Raises Damage: the line does not end."""
    for _ in range(MOST_LINE_BYTES):
        if stream.take(1) == b"\n":
            return
    raise stream.damage(f"a line of more than {MOST_LINE_BYTES:,} bytes: damaged")


def _is_last(file: BinaryIO, frame_end: int) -> bool:
    """Return whether a frame may be the last of a pickle: the frame's last bytes end a pickle."""
    file.seek(frame_end - 1)
    return file.read(1) == b"."


# --- torch.save before 1.6 ------------------------------------------------------------------------


def _is_torch(file: BinaryIO, place: int, size_bytes: int) -> bool:
    file.seek(place)
    return TORCH_MAGIC in file.read(min(32, size_bytes - place))


def _end_of_torch(file: BinaryIO, name: str, start: int, size_bytes: int, budget: Budget) -> int:
    """Return where the last storage ends.  Raises Damage, Unfollowed."""
    pickles, place = [], start
    for _ in range(5):  # magic, version, facts of the machine, the object, keys of the storages
        pickles.append(_bytes_of_pickle(file, name, place, size_bytes, budget))
        place += len(pickles[-1])
    storages, keys = _Storages(pickles[3]), _Keys(pickles[4])
    try:
        facts = dict(pairs_of(inert(pickles[2], ())))
        storages.run()
        keys.run()
    except Refused as why:
        raise Unfollowed(str(why)) from why
    except Exception as error:  # a damaged stream can raise anything in the machine
        raise Damage(f"{name}: its pickle makes no sense: damaged") from error
    if facts.get("little_endian") is False:
        raise Unfollowed("written by a big-endian machine")
    for key in keys.texts:
        n_items, item_bytes = storages.sizes.get(key, (-1, 0))
        if n_items < 0:
            raise Damage(f"{name}: has a storage that its pickle does not name: damaged")
        if not item_bytes:
            raise Unfollowed("elements of a size that is not known")
        if place + 8 > size_bytes:
            raise Unended(f"{name}: {size_bytes:,} bytes, a storage begins at {place:,}: cut short")
        file.seek(place)
        (length,) = struct.unpack("<q", file.read(8))
        if length != n_items:
            raise Damage(
                f"{name}: a storage of {length:,} elements at byte {place:,}, its pickle says "
                f"{n_items:,}: damaged"
            )
        place += 8 + n_items * item_bytes
        if place > size_bytes:
            raise Unended(f"{name}: {size_bytes:,} bytes, a storage ends at {place:,}: cut short")
    return place


class _Class(str):
    """The name of a class in a pickle."""

    __slots__ = ()


class _Storages(PickleMachine):
    """The storages that a pickle names: number of elements and bytes of an element, by key."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, frozenset())
        self.sizes: dict[str, tuple[int, int]] = {}

    def _class(self, name: Any) -> None:
        if isinstance(name, str) and name.endswith("Storage"):
            self._stack.append(_Class(name))
        else:
            super()._class(name)

    def _tuple_of(self, values: list[Any]) -> None:
        if len(values) >= 5 and values[0] == "storage" and isinstance(values[1], _Class):
            self._spend(2)
            self._stack.append(tuple(values[:5]))
        else:
            super()._tuple_of(values)

    def _persistent(self) -> None:
        named = self._stack[-1]
        if isinstance(named, tuple) and len(named) == 5:
            _, kind, key, _, n_items = named
            if not isinstance(key, str) or not isinstance(n_items, int) or n_items < 0:
                raise Refused("a storage without a length")
            # The first reference to a storage decides how the storage was written.
            size = _ITEM_BYTES.get(kind.removesuffix("Storage"), 0)
            self._spend()
            self.sizes.setdefault(key, (n_items, size))
        super()._persistent()


class _Keys(PickleMachine):
    """The texts of a list, in order."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, frozenset())
        self.texts: list[str] = []

    def _text(self, n_bytes: int) -> None:
        super()._text(n_bytes)
        self._note()

    def _old1(self) -> None:
        super()._old1()
        self._note()

    def _old4(self) -> None:
        super()._old4()
        self._note()

    def _note(self) -> None:
        if len(self.texts) >= MOST_KEYS:
            raise Refused(f"more than {MOST_KEYS:,} storages")
        self.texts.append(self._stack[-1])


def _bytes_of_pickle(
    file: BinaryIO, name: str, start: int, size_bytes: int, budget: Budget
) -> bytes:
    """Return the bytes of a pickle.  Raises Damage: the pickle has no end; Unfollowed: the pickle
    is too large."""
    end = end_of_pickle(file, name, start, size_bytes, budget)
    if end - start > MOST_PICKLE_BYTES:
        raise Unfollowed(f"a pickle of more than {MOST_PICKLE_BYTES:,} bytes")
    file.seek(start)
    return file.read(end - start)
