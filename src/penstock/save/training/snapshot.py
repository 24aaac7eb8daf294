"""Copy a state in memory into an arena laid out like the state's file.  Knows arrays; no disks.

A snapshot object serves the whole run.  The first save lays out the file and makes the arena; each
later save with equal shapes only copies bytes.  Only take() blocks the training; pickled() may run
beside the training.

Two kinds of snapshot, by the content of the state: torch's tensors become the file that torch.save
would write; NumPy's and JAX's arrays become a safetensors file with a small JSON file beside.
"""

from __future__ import annotations

import copy
import json
import logging
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.errors import SaveError
from penstock.save.training.arena import Arena
from penstock.save.training.image import ImageLayout, arrays_layout, zip_layout

__all__ = [
    "ARRAYS_FILE",
    "SCALARS_FILE",
    "TORCH_FILE",
    "ArraySnapshot",
    "TakenSnapshot",
    "TorchSnapshot",
    "holds_tensors",
    "is_array",
    "size_of",
    "state_of",
]

log = logging.getLogger("penstock.save")

TORCH_FILE = "state.pt"
ARRAYS_FILE = "state.safetensors"
SCALARS_FILE = "state.json"

# The descriptions of containers in state.json, under the container's path and a slash.  Containers
# of other kinds have no description.
LIST, INT_KEYS = "list", "mapping with whole numbers as keys"

ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None)})
SCALARS = frozenset({int, float, bool, str, type(None)})
PICKLE_PROTOCOL = 2  # torch's protocol; torch's restricted reader knows no other

# NumPy's name of a type → safetensors'.  bfloat16 and the floats of 8 bits come from ml_dtypes.
WORDS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64",
    "int64": "I64", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """The result of take(): the layout of the file in the arena, and the input of pickled().

    sizes: bytes of the arrays of a zip.  is_new: the arena was made for the current save.
    """

    arena: Arena
    layout: ImageLayout
    sizes: tuple[int, ...]
    rest: Any
    is_new: bool


class _Refused(Exception):  # noqa: N818 - what is refused, with the way to it
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.way: list[str] = []


class _Changed(Exception):  # noqa: N818 - no error: the shapes are not those of the save before
    pass


def state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with each object that has a state_dict() replaced by the state_dict()."""
    if not isinstance(state, Mapping):
        raise SaveError(
            f"a state is a mapping such as {{'model': model, 'optim': optimizer}}, and this is a "
            f"{type(state).__name__}"
        )
    return {
        key: value.state_dict() if callable(getattr(value, "state_dict", None)) else value
        for key, value in state.items()
    }


def holds_tensors(state: Any) -> bool:
    """Return True if a state holds a torch.Tensor; False at once where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    stack = [state]
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            return True
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return False


def size_of(state: Any) -> int:
    """Return the bytes of a state's tensors and arrays; shared storage counts once.

    Arrays on a device are not copied to the host.
    """
    torch = sys.modules.get("torch")
    seen, size, stack = set[tuple[int, int, int]](), 0, [state]
    while stack:
        value = stack.pop()
        if torch is not None and isinstance(value, torch.Tensor):
            try:
                storage = value.untyped_storage()
                n_bytes = storage.nbytes()
                place = (storage.data_ptr(), value.get_device(), n_bytes)
            except (RuntimeError, NotImplementedError):  # take() reports the tensor
                continue
            size += n_bytes if place not in seen else 0
            seen.add(place)
        elif is_array(value):
            size += int(getattr(value, "nbytes", 0))
        elif isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return size


def is_array(value: Any) -> bool:
    """Return True for an array of NumPy or JAX, or any value with __array__, dtype and shape."""
    return hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape")


def _named(error: _Refused) -> SaveError:
    return SaveError(f"state[{']['.join(error.way)}]: {error}")


# torch


@dataclass(slots=True)
class _Twin:
    """A tensor in the arena with the form of a tensor of the state.  key: the form."""

    key: tuple[Any, ...]
    tensor: Any


class TorchSnapshot:
    """A snapshot of a state with torch's tensors.

    is_weights_only: refuse objects that torch.load(weights_only=True) would not read.
    Tensors with shared storage share the storage in the file.  As in torch.save, the whole storage
    is saved.
    """

    file = TORCH_FILE

    def __init__(self, is_weights_only: bool = True) -> None:
        import torch

        self._torch = torch
        self._is_weights_only = is_weights_only
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._arena: Arena | None = None
        self._layout = ImageLayout((), 0)
        self._sizes: tuple[int, ...] = ()
        self._bytes: list[Any] = []  # per slot: the storage in the arena
        self._twins: list[_Twin] = []
        self._checked: frozenset[Any] = frozenset()
        self._pinned = 0  # the arena's address while pinned by CUDA

    def take(self, state: Mapping[str, Any]) -> TakenSnapshot:
        """Copy the state.  Raises SaveError, with the path of the unsupported value."""
        is_new = False
        try:
            try:
                walk = _Walk(self, is_planning=self._arena is None)
                rest = walk.value(state)
                walk.is_as_planned()
            except _Changed:
                walk = _Walk(self, is_planning=True)
                rest = walk.value(state)
        except _Refused as error:
            raise _named(error) from None
        if walk.is_planning:
            is_new = self._plan(walk)
            walk = _Walk(self, is_planning=False)
            rest = walk.value(state)
        for target, source in zip(self._bytes, walk.sources, strict=True):
            if target is not None:
                target.copy_(source, True)
        for device in walk.devices:  # copy_() only starts the copies
            self._torch.accelerator.synchronize(device)
        assert self._arena is not None
        return TakenSnapshot(self._arena, self._layout, self._sizes, rest, is_new)

    def _plan(self, walk: _Walk) -> bool:
        """Lay out the file for the tensors of the walk; return True if a new arena was needed."""
        torch = self._torch
        sizes = tuple(source.nbytes() for source in walk.sources)
        is_new = self._arena is None or sizes != self._sizes
        if is_new:
            layout = zip_layout(sizes)
            before, self._arena = self._arena, None
            self._bytes, self._twins = [], []
            if before is not None:
                self._let_go(before)  # before the new arena: memory may not hold two
            self._arena = arena = Arena(max(layout.size_bytes, 1))
            self._layout, self._sizes = layout, sizes
            if walk.devices:
                self._pinned = _pin(torch, arena)
            self._bytes = [
                torch.frombuffer(
                    arena.memory, dtype=torch.uint8, count=n_bytes, offset=offset
                ).untyped_storage()
                if n_bytes
                else None
                for n_bytes, offset in zip(sizes, layout.offsets, strict=True)
            ]
        self._twins = [self._twin(key) for key in walk.keys]
        return is_new

    def _twin(self, key: tuple[Any, ...]) -> _Twin:
        torch = self._torch
        kind, dtype, shape, stride, offset, needs_gradient, slot = key
        tensor = torch.empty(0, dtype=dtype)
        if self._bytes[slot] is not None:
            tensor = tensor.set_(self._bytes[slot], offset, shape, stride)
        else:
            tensor = tensor.as_strided(shape, stride)
        if kind is torch.nn.Parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad=needs_gradient)
        elif needs_gradient:
            tensor.requires_grad_(True)
        return _Twin(key, tensor)

    def pickled(self, taken: TakenSnapshot) -> bytes:
        """Return the pickle of a taken state, as torch.save writes it.

        May run beside the training.  Raises SaveError: torch.load(weights_only=True) refuses an
        object in the state, or an object cannot be pickled.
        """
        slots = {
            storage.data_ptr(): slot
            for slot, storage in enumerate(self._bytes)
            if storage is not None
        }
        empty = next((slot for slot, size in enumerate(self._sizes) if not size), len(self._sizes))
        pickled, seen = _pickled(self._torch, taken.rest, slots, empty)
        if self._is_weights_only and not seen <= self._checked:
            _check_weights_only(self._torch, pickled)
            self._checked |= seen
        return pickled

    def twin(self, number: int, key: tuple[Any, ...]) -> Any:
        """Return the twin of the walk's tensor `number`.  Raises _Changed if the key differs."""
        if number >= len(self._twins) or self._twins[number].key != key:
            raise _Changed
        return self._twins[number].tensor

    def fits(self, slot: int, n_bytes: int) -> bool:
        return slot < len(self._sizes) and self._sizes[slot] == n_bytes

    def n_planned(self) -> tuple[int, int]:
        return len(self._twins), len(self._sizes)

    def close(self) -> None:
        """Free the arena."""
        self._bytes, self._twins = [], []
        before, self._arena = self._arena, None
        if before is not None:
            self._let_go(before)

    def _let_go(self, arena: Arena) -> None:
        if self._pinned:  # unregister: the next arena may have the same address
            self._torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = 0
        arena.close()


def _pin(torch: Any, arena: Arena) -> int:
    """Pin the arena, so that a device copies into the arena by DMA.

    Return the arena's address; 0 where pinning is impossible, and copies are slower.
    """
    if not torch.cuda.is_available():
        return 0
    address: int = torch.frombuffer(arena.memory, dtype=torch.uint8).data_ptr()
    result = torch.cuda.cudart().cudaHostRegister(address, arena.size_bytes, 0)
    if not int(result):
        return address
    log.warning(
        "the memory for snapshots cannot be pinned (CUDA error %d): copies from the device take "
        "longer",
        int(result),
    )
    with suppress(RuntimeError):  # CUDA repeats an error at the next launch: consume the error here
        torch.ones(1, device="cuda")
    return 0


class _Walk:
    """A traversal of a state that copies the containers and replaces each tensor by a twin."""

    def __init__(self, snapshot: TorchSnapshot, is_planning: bool) -> None:
        self.torch = snapshot._torch
        self.plain = snapshot._plain
        self.snapshot = snapshot
        self.is_planning = is_planning
        self.sources: list[Any] = []  # distinct storages, in the order of the file
        self.keys: list[tuple[Any, ...]] = []
        self.slots: dict[tuple[int, int, int], int] = {}
        self.dtypes: list[Any] = []
        self.n_tensors = 0
        self.devices: dict[Any, None] = {}

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind in self.plain:
            return self.tensor(value, kind)
        if kind is dict:
            return {key: self._inside(key, inner) for key, inner in value.items()}
        if kind is OrderedDict:  # torch adds an attribute _metadata
            copied: OrderedDict[Any, Any] = OrderedDict(
                (key, self._inside(key, inner)) for key, inner in value.items()
            )
            vars(copied).update(copy.deepcopy(vars(value)))
            return copied
        if kind is list:
            return [self._inside(number, inner) for number, inner in enumerate(value)]
        if kind is tuple:
            return tuple(self._inside(number, inner) for number, inner in enumerate(value))
        if isinstance(value, self.torch.Tensor):
            raise _Refused(
                f"a tensor of type {kind.__name__} is not saved here; sharded ones go through "
                "torch.distributed.checkpoint with penstock.adapters.save.torch.TieredWriter"
            )
        try:
            return copy.deepcopy(value)  # the training may change the original
        except Exception as error:
            raise _Refused(f"a {kind.__name__} cannot be copied: {error}") from error

    def _inside(self, key: Any, value: Any) -> Any:
        try:
            return self.value(value)
        except _Refused as error:
            error.way.insert(0, repr(key))
            raise

    def tensor(self, tensor: Any, kind: type) -> Any:
        try:
            storage = tensor.untyped_storage()
            pointer, n_bytes, device = storage.data_ptr(), storage.nbytes(), tensor.get_device()
        except (RuntimeError, NotImplementedError) as error:
            raise _Refused(f"a tensor without a plain storage ({tensor.layout})") from error
        if (not pointer and n_bytes) or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise _Refused("a tensor that is quantized, conjugated by a flag or on no device")
        if device >= 0:
            self.devices[storage.device] = None
        # Views of an array may be storages of several lengths at the same address.
        place = (pointer, device, n_bytes) if n_bytes else (0, -1, 0)
        slot = self.slots.get(place)
        if slot is None:
            slot = self.slots[place] = len(self.sources)
            if not self.is_planning and not self.snapshot.fits(slot, n_bytes):
                raise _Changed
            self.sources.append(storage)
            self.dtypes.append(tensor.dtype)
        elif self.dtypes[slot] != tensor.dtype and n_bytes:
            raise _Refused(
                "it looks at the bytes of another tensor as another type, which no file of torch "
                "can say; clone it first"
            )
        number = self.n_tensors
        self.n_tensors += 1
        key = (
            kind, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(),
            tensor.requires_grad, slot,
        )  # fmt: skip
        if self.is_planning:
            self.keys.append(key)
            return None
        return self.snapshot.twin(number, key)

    def is_as_planned(self) -> None:
        """Raise _Changed if the save before had more tensors or storages."""
        if not self.is_planning and (self.n_tensors, len(self.sources)) != (
            self.snapshot.n_planned()
        ):
            raise _Changed


def _pickled(
    torch: Any, state: Any, slots: Mapping[int, int], empty: int
) -> tuple[bytes, frozenset[Any]]:
    """Pickle as torch.save does, with storages by number; also return the classes and functions."""
    import io

    seen: set[Any] = set()
    typed, untyped = torch.storage.TypedStorage, torch.storage.UntypedStorage

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            kind = type(value)
            if kind is typed:
                storage = value._untyped_storage
                word, count = getattr(torch, value._pickle_storage_type()), value._size()
            elif kind is untyped:
                storage, word, count = value, untyped, value.nbytes()
            else:
                return None
            slot = slots.get(storage.data_ptr()) if storage.nbytes() else empty
            if slot is None:
                raise SaveError("a tensor inside an object that is no plain container")
            return ("storage", word, str(slot), "cpu", count)

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, type) or callable(value):
                seen.add(value)
            return NotImplemented

    def dumped(value: Any) -> bytes:
        buffer = io.BytesIO()
        Pickler(buffer, PICKLE_PROTOCOL).dump(value)
        return buffer.getvalue()

    try:
        return dumped(state), frozenset(seen)
    except SaveError as error:
        raise SaveError(f"{_way_to_failing(dumped, state)}: {error}") from None
    except Exception as error:
        raise SaveError(
            f"{_way_to_failing(dumped, state)}: something that cannot be pickled: {error}"
        ) from error


def _way_to_failing(dumped: Callable[[Any], bytes], state: Any) -> str:
    """Return the path of the innermost value that cannot be pickled, such as state['a'][1]."""
    way, here = "state", state
    while True:
        inner = list(enumerate(here)) if isinstance(here, list | tuple) else []
        inner = list(here.items()) if isinstance(here, dict) else inner
        for key, value in inner:
            try:
                dumped(value)
            except Exception:
                way, here = f"{way}[{key!r}]", value
                break
        else:
            return way


def _check_weights_only(torch: Any, pickled: bytes) -> None:
    import io
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", content)
    file.seek(0)
    unsafe = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    if unsafe:
        raise SaveError(
            f"the state holds {', '.join(unsafe)}, which torch.load(weights_only=True) would not "
            "read back; save tensors and plain values instead (torch.from_numpy of an array), or "
            "say Checkpointer(weights_only=False) and load with weights_only=False"
        )


# NumPy, JAX


class ArraySnapshot:
    """A snapshot of a state with arrays that are no torch tensors; other values must fit JSON."""

    file = ARRAYS_FILE

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._layout = ImageLayout((), 0)
        self._key: tuple[Any, ...] = ()
        self._targets: list[Any] = []

    def take(self, state: Mapping[str, Any]) -> TakenSnapshot:
        """Copy the state.  Raises SaveError, with the path of the unsupported value."""
        import numpy as np

        arrays: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        try:
            _flatten(state, "", arrays, scalars)
        except _Refused as error:
            raise _named(error) from None
        for array in arrays.values():  # start all copies from a device before awaiting the first
            begin = getattr(array, "copy_to_host_async", None)
            if begin is not None:
                begin()
        plain = {name: np.asarray(array) for name, array in arrays.items()}
        described = {
            name: (WORDS[array.dtype.name], array.shape, array.nbytes)
            for name, array in plain.items()
        }
        key = tuple(described.items())
        is_new = self._arena is None or key != self._key
        if is_new:
            self._plan(arrays_layout(described), list(plain.values()), key)
        for target, source in zip(self._targets, plain.values(), strict=True):
            np.copyto(target, source)
        assert self._arena is not None
        return TakenSnapshot(self._arena, self._layout, (), scalars, is_new)

    def _plan(self, layout: ImageLayout, arrays: list[Any], key: tuple[Any, ...]) -> None:
        import numpy as np

        before, self._arena, self._targets = self._arena, None, []
        if before is not None:
            before.close()
        arena = Arena(max(layout.size_bytes, 1))
        arena.memory[: len(layout.head)] = layout.head
        self._targets = [
            np.ndarray(array.shape, array.dtype, arena.memory, offset)
            for array, offset in zip(arrays, layout.offsets, strict=True)
        ]
        self._arena, self._layout, self._key = arena, layout, key

    def pickled(self, taken: TakenSnapshot) -> bytes:
        """Return the values that are no arrays, as JSON: path → value."""
        return json.dumps(taken.rest, indent=1).encode()

    def close(self) -> None:
        """Free the arena."""
        self._targets = []
        if self._arena is not None:
            self._arena.close()
            self._arena = None


def _flatten(value: Any, path: str, arrays: dict[str, Any], scalars: dict[str, Any]) -> None:
    """Collect arrays and scalars by path.  path: the keys from the top, joined by slashes."""
    if type(value) in SCALARS:
        scalars[path] = value
        return
    if is_array(value):
        name = getattr(value.dtype, "name", str(value.dtype))
        if name not in WORDS or sys.byteorder != "little":
            raise _Refused(f"safetensors has no word for arrays of {name}")
        arrays[path] = value
        return
    items, kind = _items_of(value)
    names = [str(key) for key, _ in items]
    if len(set(names)) < len(names) or any("/" in name or not name for name in names):
        raise _Refused("two keys are the same text, or one is empty or has a slash in it")
    if path and not items:
        scalars[path] = {} if isinstance(value, Mapping) else []
    elif path and kind:  # no other path ends with a slash: an empty key is refused
        scalars[f"{path}/"] = kind
    for (key, inner), name in zip(items, names, strict=True):
        try:
            _flatten(inner, f"{path}/{name}" if path else name, arrays, scalars)
        except _Refused as error:
            error.way.insert(0, repr(key))
            raise


def _items_of(value: Any) -> tuple[list[tuple[Any, Any]], str]:
    """Return the keys and values of a container, and the kind.  Raises _Refused."""
    if isinstance(value, Mapping):
        items = list(value.items())
        return items, INT_KEYS if all(type(key) is int for key, _ in items) else ""
    if isinstance(value, list | tuple):
        return list(enumerate(value)), LIST
    raise _Refused(f"a {type(value).__name__} is neither an array nor a value of JSON")


Snapshot = TorchSnapshot | ArraySnapshot
Opener = Callable[[], Snapshot]
