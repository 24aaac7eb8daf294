"""Load the files of a checkpoint into a state.

Only torch.load unpickles, by default with weights_only=True; the user can allow more.

Two steps, load() then apply(): all files are read before the state changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import SaveError
from penstock.save.checkpoint import Checkpoint
from penstock.save.training.snapshot import INT_KEYS, LIST, WORDS, is_array, state_of

__all__ = ["apply", "file_of_rank", "is_loadable", "load"]

RANKED = re.compile(r"state(?:-(\d{5,})-of-(\d{5,}))?\.(?:pt|safetensors)")
MOST_HEADER_BYTES = 1 << 30
TORCH_SUFFIXES = (".pt", ".pth", ".ckpt")


def file_of_rank(name: str, rank: int, world_size: int) -> str:
    """Return the name of a rank's file; with one rank, the plain name."""
    if world_size == 1:
        return name
    stem, _, ending = name.rpartition(".")
    return f"{stem}-{rank:05d}-of-{world_size:05d}.{ending}"


def is_loadable(checkpoint: Checkpoint) -> bool:
    """Return True if a Checkpointer wrote a checkpoint, complete or not.

    Pretrained weights and other programs' files in the same folder are no restart checkpoints.
    """
    names = [checkpoint.inner(file) for file in checkpoint.files]
    if checkpoint.manifest is not None:
        names += [file.name for file in checkpoint.manifest.files]
    return any(RANKED.fullmatch(name.rpartition("/")[2]) for name in names)


def load(folder: Path, rank: int, world_size: int, weights_only: bool) -> Any:
    """Return the saved state of a rank: torch's containers, or a _Flat.  Raises SaveError."""
    path = _file_for(folder, rank, world_size)
    if path.suffix in TORCH_SUFFIXES:
        return _load_torch(path, weights_only)
    return _Flat(path)


def _file_for(folder: Path, rank: int, world_size: int) -> Path:
    if folder.is_file():
        match = RANKED.fullmatch(folder.name)
        if match is None or match[1] is None:
            return folder
        folder = folder.parent  # without a manifest each rank looks for the rank's own file
    matches = {path: RANKED.fullmatch(path.name) for path in sorted(folder.glob("state*"))}
    matched = {path: match for path, match in matches.items() if match}
    if not matched:
        raise SaveError(
            f"{folder}: whole, but not written by a Checkpointer; load it with the library that "
            "wrote it"
        )
    if len(matched) == 1:  # a single rank, or a rank saved for all
        return next(iter(matched))
    own = [
        path
        for path, match in matched.items()
        if match[1] is not None and int(match[1]) == rank and int(match[2]) == world_size
    ]
    if not own:
        raise SaveError(
            f"{folder}: holds the states of {len(matched)} ranks, and none of rank {rank} of "
            f"{world_size}; start as many ranks as saved it, or save sharded states through "
            "torch.distributed.checkpoint, which divides them anew"
        )
    return own[0]


def _load_torch(path: Path, weights_only: bool) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise SaveError(f"{path}: saved with torch, which is not installed here") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=weights_only)
    except Exception as error:
        raise SaveError(f"{path}: torch.load: {error}") from error


class _Flat:
    """Arrays and scalars by path, from a safetensors file and the JSON file beside."""

    def __init__(self, path: Path) -> None:
        beside = path.with_suffix(".json")
        try:
            self.arrays = _read_arrays(path)
            self.scalars = json.loads(beside.read_text())
        except OSError as error:
            raise SaveError(f"{error.filename}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SaveError(f"{beside}: no JSON: {error}") from error
        if not isinstance(self.scalars, dict):
            raise SaveError(f"{beside}: not what a Checkpointer writes")


def _read_arrays(path: Path) -> dict[str, Any]:
    """Read a safetensors file; check every number before use.  Raises SaveError."""
    import numpy as np

    with suppress(ModuleNotFoundError):  # JAX and TensorFlow install ml_dtypes
        import ml_dtypes  # noqa: F401 - gives NumPy bfloat16 and the floats of 8 bits

    names = {word: name for name, word in WORDS.items()}
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MOST_HEADER_BYTES, size - 8):
            raise SaveError(f"{path}: a header of {length:,} bytes in a file of {size:,}")
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r") if size > 8 + length else np.zeros(size, np.uint8)
    arrays = {}
    for name, facts in header.items():
        if name == "__metadata__":
            continue
        try:
            kind = np.dtype(names[facts["dtype"]])
            shape = tuple(int(n) for n in facts["shape"])
            begin, end = (int(n) for n in facts["data_offsets"])
            n_bytes = kind.itemsize
            for n in shape:
                n_bytes *= n
            is_inside = 0 <= begin <= end <= size - 8 - length and min((*shape, 0)) >= 0
            if not is_inside or end - begin != n_bytes:
                raise SaveError(f"{path}: {name}: does not lie in the file")
            part = data[8 + length + begin : 8 + length + end]
            arrays[name] = np.array(part).view(kind).reshape(shape)  # a writable copy
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SaveError(f"{path}: {name}: {error!r}") from error
    return arrays


def apply(content: Any, state: MutableMapping[str, Any], where: str) -> None:
    """Fill the state with loaded values.  Raises SaveError: the values do not fit the program."""
    if isinstance(content, _Flat):
        content = _shaped(_tree(content, where), state_of(state), where)
    if not isinstance(content, Mapping):
        raise SaveError(f"{where}: holds a {type(content).__name__} and no mapping")
    absent = [str(key) for key in state if key not in content]
    if absent:
        raise SaveError(
            f"{where}: has no {', '.join(absent)}; it has {', '.join(map(str, content))}; was it "
            "saved by another version of the program?"
        )
    for key in list(state):
        target = state[key]
        try:
            if callable(getattr(target, "load_state_dict", None)):
                target.load_state_dict(content[key])
            else:
                state[key] = _filled(target, content[key])
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise SaveError(
                f"{where}: {key}: does not fit this program: {error}; was it saved by another "
                "version of it?"
            ) from error


def _filled(target: Any, value: Any) -> Any:
    """Return the target filled with the value, where the target can hold values; else the value."""
    if isinstance(target, MutableMapping) and isinstance(value, Mapping):
        absent = [str(key) for key in target if key not in value]
        if absent:
            raise KeyError(f"{', '.join(absent)} was not saved")
        for key in value:
            target[key] = _filled(target.get(key), value[key])
        return target
    if isinstance(target, list | tuple) and isinstance(value, list | tuple):
        if not any(map(is_array, target)):  # a history may have grown
            return value
        if len(target) != len(value):
            raise ValueError(f"{len(value)} values were saved, and there are {len(target)} now")
        return _made(type(value), [_filled(*pair) for pair in zip(target, value, strict=True)])
    if isinstance(target, Mapping) and isinstance(value, Mapping):  # an immutable mapping
        made: Any = type(target)
        return made({key: _filled(target.get(key), inner) for key, inner in value.items()})
    if is_array(target) and hasattr(value, "shape"):
        if tuple(target.shape) != tuple(value.shape):
            raise ValueError(f"shape {tuple(value.shape)} was saved, {tuple(target.shape)} is now")
        return _array_filled(target, value)
    return value


def _array_filled(target: Any, value: Any) -> Any:
    if hasattr(target, "untyped_storage"):
        target.detach().copy_(value)
        return target
    import numpy as np

    if isinstance(target, np.ndarray):
        np.copyto(target, np.asarray(value))
        return target
    if hasattr(target, "sharding"):  # JAX's arrays are immutable: make another, placed alike
        import jax

        return jax.device_put(np.asarray(value).astype(target.dtype), target.sharding)
    return value


class _Inner(dict[str, Any]):
    """A saved container.  kind: as in snapshot.py; empty: unknown."""

    kind = ""


def _tree(flat: _Flat, where: str) -> _Inner:
    """Return flat paths as nested containers.  Raises SaveError: two values under one path."""
    root = _Inner()
    for path, value in (flat.arrays | flat.scalars).items():
        *way, last = path.split("/")
        node = root
        for name in way:
            node = node.setdefault(name, _Inner())
            if not isinstance(node, _Inner):
                raise SaveError(f"{where}: {path}: below what is a value")
        if last:
            node[last] = value
        else:
            node.kind = str(value)
    return root


def _shaped(content: Any, like: Any, where: str) -> Any:
    """Return all saved values, and no others, in the program's types of containers."""
    is_list = isinstance(like, list | tuple)
    if not isinstance(content, _Inner):
        return _made(type(like), []) if is_list and content == [] else content
    if isinstance(like, Mapping):
        keys = {str(key): key for key in like}
    elif is_list or content.kind == LIST:
        names = [str(number) for number in range(len(content))]
        if set(names) != set(content):
            raise SaveError(
                f"{where}: {', '.join(map(str, content))} were saved where the program has a list; "
                "was it saved by another version of it?"
            )
        likes = [*like, *[None] * len(content)] if is_list else [None] * len(content)
        values = [_shaped(content[name], likes[n], where) for n, name in enumerate(names)]
        return _made(type(like) if is_list else list, values)
    else:
        keys = {}
    is_whole = content.kind == INT_KEYS
    made = {}
    for name, inner in content.items():
        key = keys.get(name, int(name) if is_whole and name.lstrip("-").isdecimal() else name)
        made[key] = _shaped(inner, like.get(key) if isinstance(like, Mapping) else None, where)
    return made


def _made(kind: Any, values: list[Any]) -> Any:
    """Make a list, a tuple or a named tuple."""
    return kind(*values) if hasattr(kind, "_fields") else kind(values)
