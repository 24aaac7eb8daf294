"""Read a pickle as a list of operations on inert values, without unpickling.

Knows the operations in torch's files; imports nothing and calls nothing that a pickle names.  Kept
are whole numbers, texts, mappings, and the requested attributes of objects.  Everything else is the
single value OTHER: a million tensors are described by ten million objects, and only a few numbers
are needed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

__all__ = ["OTHER", "PickleMachine", "PickledObject", "Refused", "inert", "pairs_of"]

# torch.distributed.checkpoint 2.13 has 0.10 values and 0.10 memos a byte where each tensor is a
# single piece (270 bytes), 0.13 and 0.11 where each tensor is 64 pieces (145 bytes each).
VALUES_A_BYTE, MEMOS_A_BYTE = 0.25, 0.25
SOME = 100_000  # values and memos allowed in any file
MOST_VALUES = 40_000_000  # of 1.5 million pieces; 56 to 100 bytes each
MOST_DEPTH = 1_000_000  # of the stack; a pickler pushes a thousand values at a time
LOOK = 4096  # operations
MEMOIZE, BINGET, LONG_BINGET, BININT1 = b"\x94hjK"
INT_BYTES = 8


class Refused(Exception):  # noqa: N818 - a finding, not an accident of ours
    """Why a pickle was not read to the end, in words."""


class _Other:
    """A value that is not kept."""

    def __repr__(self) -> str:
        return "OTHER"


OTHER: Final = _Other()
_MAPPING: Final = _Other()  # a class whose objects are mappings
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class PickledObject:
    """An object in a pickle.

    fields: the requested attributes.  pairs: for a mapping the keys and values in turns, else None.
    """

    __slots__ = ("fields", "pairs")

    def __init__(self) -> None:
        self.fields: Mapping[str, Any] = _NONE
        self.pairs: list[Any] | None = None


def pairs_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return keys and values of a mapping; nothing for another value."""
    flat = value.pairs if isinstance(value, PickledObject) else value
    flat = flat if isinstance(flat, list) else []
    return zip(islice(flat, 0, None, 2), islice(flat, 1, None, 2), strict=True)


def inert(data: bytes, fields: Collection[str]) -> Any:
    """Return the value of a pickle.

    A number, a text, a mapping (a list of keys and values in turns), a PickledObject with the given
    fields, None, True, False or OTHER.  Raises Refused: the pickle is cut short or damaged, or
    needs more than data of the given length may need.
    """
    try:
        return PickleMachine(data, frozenset(fields)).run()
    except Refused:
        raise
    except Exception as error:  # a damaged stream can cause any error
        raise Refused("no whole pickle: cut short or damaged") from error


class PickleMachine:
    """Execute the operations of a pickle; subclasses keep more values.

    A mapping is a list; no other kept value is a list.
    """

    def __init__(self, data: bytes, fields: frozenset[str]) -> None:
        self._data, self._wanted, self._place = data, fields, 0
        self._stack: list[Any] = []
        self._marks: list[int] = []  # heights of the stack
        self._memo: list[Any] = []
        self._most_memos = min(MOST_VALUES, SOME + int(len(data) * MEMOS_A_BYTE))
        self._left = min(MOST_VALUES, SOME + int(len(data) * VALUES_A_BYTE))

    def run(self) -> Any:
        operations: list[Callable[[], None]] = [self._refuse] * 256
        for code, name in _OPERATIONS.items():
            operations[code] = getattr(self, name)
        data, stack, memo = self._data, self._stack, self._memo
        place, stop = 0, ord(".")
        while True:
            self._look()
            for _ in range(LOOK):
                code = data[place]
                place += 1
                # More than half of all operations: handled without a call.
                if code == MEMOIZE:
                    memo.append(stack[-1])
                elif code == BINGET:
                    stack.append(memo[data[place]])
                    place += 1
                elif code == LONG_BINGET:
                    stack.append(memo[int.from_bytes(data[place : place + 4], "little")])
                    place += 4
                elif code == BININT1:
                    stack.append(data[place])
                    place += 1
                elif code == stop:
                    return stack[-1]
                else:
                    self._place = place
                    operations[code]()
                    place = self._place

    def _look(self) -> None:
        if len(self._stack) > MOST_DEPTH or len(self._marks) > MOST_DEPTH:
            raise Refused(f"more than {MOST_DEPTH:,} values wait in it for their container")
        if len(self._memo) > self._most_memos:
            raise Refused(f"more than {self._most_memos:,} values to come back to in its bytes")

    def _spend(self, n_values: int = 1) -> None:
        self._left -= n_values
        if self._left < 0:
            most = min(MOST_VALUES, SOME + int(len(self._data) * VALUES_A_BYTE))
            raise Refused(f"more than {most:,} values in {len(self._data):,} bytes")

    def _refuse(self) -> None:
        code = self._data[self._place - 1]
        raise Refused(f"an operation that no such file has: {code:#04x}")

    # The arguments of an operation

    def _take(self, n_bytes: int) -> bytes:
        start, self._place = self._place, self._place + n_bytes
        if self._place > len(self._data):
            raise Refused("cut short")
        return self._data[start : self._place]

    def _skip(self, n_bytes: int) -> None:
        self._place += n_bytes  # beyond the end, the next operation fails

    def _number(self, n_bytes: int) -> int:
        return int.from_bytes(self._take(n_bytes), "little")

    def _line(self) -> bytes:
        start, self._place = self._place, self._data.index(b"\n", self._place) + 1
        return self._data[start : self._place - 1]

    def _group(self) -> list[Any]:
        start = self._marks.pop()
        group = self._stack[start:]
        del self._stack[start:]
        return group

    # Values

    def _none(self) -> None:
        self._stack.append(None)

    def _true(self) -> None:
        self._stack.append(True)

    def _false(self) -> None:
        self._stack.append(False)

    def _other(self) -> None:
        self._stack.append(OTHER)

    def _mapping(self) -> None:
        self._spend()
        self._stack.append([])

    def _int2(self) -> None:
        self._stack.append(self._number(2))

    def _int4(self) -> None:
        self._stack.append(int.from_bytes(self._take(4), "little", signed=True))

    def _long(self, n_bytes: int) -> None:
        if n_bytes > INT_BYTES:  # too large for a position in a file
            self._skip(n_bytes)
            self._stack.append(OTHER)
        else:
            self._stack.append(int.from_bytes(self._take(n_bytes), "little", signed=True))

    def _long1(self) -> None:
        self._long(self._number(1))

    def _long4(self) -> None:
        self._long(self._number(4))

    def _int_line(self) -> None:
        line = self._line().removesuffix(b"L")
        self._stack.append(int(line) if len(line) <= 2 * INT_BYTES else OTHER)

    def _text1(self) -> None:
        self._text(self._number(1))

    def _text4(self) -> None:
        self._text(self._number(4))

    def _text8(self) -> None:
        self._text(self._number(8))

    def _text(self, n_bytes: int) -> None:
        self._stack.append(self._take(n_bytes).decode("utf-8", "surrogatepass"))

    def _old1(self) -> None:
        self._stack.append(self._take(self._number(1)).decode("latin-1"))

    def _old4(self) -> None:
        self._stack.append(self._take(self._number(4)).decode("latin-1"))

    def _text_line(self) -> None:
        self._stack.append(self._line().decode("raw-unicode-escape"))

    def _old_line(self) -> None:
        self._stack.append(self._line()[1:-1].decode("latin-1"))

    def _bytes1(self) -> None:
        self._skip(self._number(1))
        self._stack.append(OTHER)

    def _bytes4(self) -> None:
        self._skip(self._number(4))
        self._stack.append(OTHER)

    def _bytes8(self) -> None:
        self._skip(self._number(8))
        self._stack.append(OTHER)

    def _float(self) -> None:
        self._skip(8)
        self._stack.append(OTHER)

    def _float_line(self) -> None:
        self._line()
        self._stack.append(OTHER)

    # The stack and the memo

    def _protocol(self) -> None:
        self._skip(1)

    def _frame(self) -> None:
        self._skip(8)

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _pop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _pop_mark(self) -> None:
        self._group()

    def _dup(self) -> None:
        self._stack.append(self._stack[-1])

    def _put(self, place: int) -> None:
        memo = self._memo
        if place > len(memo) + 1:  # picklers count from 0 or from 1
            raise Refused("its values are numbered in no order")
        while len(memo) <= place:
            memo.append(OTHER)
        memo[place] = self._stack[-1]

    def _put1(self) -> None:
        self._put(self._number(1))

    def _put4(self) -> None:
        self._put(self._number(4))

    def _put_line(self) -> None:
        self._put(int(self._line()))

    def _get_line(self) -> None:
        self._stack.append(self._memo[int(self._line())])

    # Containers and objects

    def _tuple_of(self, values: list[Any]) -> None:
        """Keep a pair with a mapping: the attributes of an object may come as two mappings."""
        is_kept = len(values) == 2 and list in map(type, values)
        if is_kept:
            self._spend(2)
        self._stack.append(tuple(values) if is_kept else OTHER)

    def _tuple(self) -> None:
        self._tuple_of(self._group())

    def _last(self, n: int) -> None:
        values = self._stack[-n:]
        del self._stack[-n:]
        if len(values) < n:
            raise Refused("cut short")
        self._tuple_of(values)

    def _tuple1(self) -> None:
        self._last(1)

    def _tuple2(self) -> None:
        self._last(2)

    def _tuple3(self) -> None:
        self._last(3)

    def _group_other(self) -> None:
        self._group()
        self._stack.append(OTHER)

    def _pop_one(self) -> None:
        """Drop an item of a container that is not kept."""
        self._stack.pop()

    def _dict(self) -> None:
        group = self._group()
        self._stack.append([])
        self._set(group)

    def _set(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise Refused("a key without a value")
        target = self._stack[-1]
        if isinstance(target, PickledObject):
            if target.pairs is None:
                target.pairs = []
            target = target.pairs
        if isinstance(target, list):
            self._spend(len(values) // 2)
            target.extend(values)

    def _setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _setitems(self) -> None:
        self._set(self._group())

    def _class(self, name: Any) -> None:
        # Other values are not converted to text: nested mappings would fill the memory.
        is_mapping = isinstance(name, str) and name.endswith(("OrderedDict", "defaultdict"))
        self._stack.append(_MAPPING if is_mapping else OTHER)

    def _global(self) -> None:
        self._line()
        self._class(self._line().decode("latin-1"))

    def _stack_global(self) -> None:
        name = self._stack.pop()
        self._stack.pop()
        self._class(name)

    def _reduce(self) -> None:
        self._stack.pop()
        if self._stack.pop() is _MAPPING:
            self._mapping()
        else:
            self._stack.append(OTHER)

    def _newobj(self) -> None:
        self._spend()
        del self._stack[-2:]
        self._stack.append(PickledObject())

    def _newobj_ex(self) -> None:
        self._stack.pop()
        self._newobj()

    def _build(self) -> None:
        state, wanted = self._stack.pop(), self._wanted
        kept: dict[str, Any] = {}
        for mapping in state if isinstance(state, tuple) else (state,):
            if isinstance(mapping, list):
                kept |= {key: value for key, value in pairs_of(mapping) if key in wanted}
                mapping.clear()  # no other reference exists, and there are millions of mappings
        if kept:
            self._spend(len(kept))
            if not isinstance(self._stack[-1], PickledObject):
                self._stack[-1] = PickledObject()
            self._stack[-1].fields = kept

    def _persistent(self) -> None:
        """Replace the reference to a tensor's bytes."""
        self._stack[-1] = OTHER


# Python's pickletools.py describes the operations.
_OPERATIONS = {
    ord(code): name
    for name, codes in {
        "_none": "N", "_true": "\x88", "_false": "\x89", "_other": "]\x8f)", "_mapping": "}",
        "_int2": "M", "_int4": "J", "_long1": "\x8a", "_long4": "\x8b", "_int_line": "IL",
        "_text1": "\x8c", "_text4": "X", "_text8": "\x8d", "_old1": "U", "_old4": "T",
        "_text_line": "V", "_old_line": "S", "_bytes1": "C", "_bytes4": "B",
        "_bytes8": "\x8e\x96", "_float": "G", "_float_line": "F", "_protocol": "\x80",
        "_frame": "\x95", "_mark": "(", "_pop": "0", "_pop_mark": "1e\x90", "_dup": "2",
        "_put1": "q", "_put4": "r", "_put_line": "p", "_get_line": "g", "_tuple": "t",
        "_tuple1": "\x85", "_tuple2": "\x86", "_tuple3": "\x87", "_group_other": "l\x91",
        "_pop_one": "a", "_dict": "d", "_setitem": "s", "_setitems": "u", "_global": "c",
        "_stack_global": "\x93", "_reduce": "R", "_newobj": "\x81", "_newobj_ex": "\x92",
        "_build": "b", "_persistent": "Q",
    }.items()
    for code in codes
}  # fmt: skip
