"""Check that an Orbax step is whole: JSON parts, the trees of OCDBT, arrays in separate files.

Orbax' arrays have no checksum.  The list of the items is in `_CHECKPOINT_METADATA`, the list of the
arrays in each item's `_METADATA`.
"""

import re
from collections.abc import Iterator

from penstock.places.stores import StoredFile
from penstock.save.check.foreign import Damage, Scope, check_json, check_ocdbt, check_ocdbt_tree
from penstock.save.check.interior import Folders, by_folder, read_json, read_small
from penstock.save.check.zarrfiles import check_zarr
from penstock.save.checkpoint import Checkpoint

__all__ = ["check_orbax"]

_STEP, _ITEM, _SHARDING, _ENDED = (
    "_CHECKPOINT_METADATA", "_METADATA", "_sharding", "commit_success.txt",
)  # fmt: skip
_JSON = (_ITEM, _STEP, _SHARDING, ".zarray", "zarr.json", "metadata")
_ARRAY_TYPES = ("jax.Array", "np.ndarray", "scalar")  # value_type of a leaf with separate files


def check_orbax(checkpoint: Checkpoint, scope: Scope) -> None:
    """Check the JSON files, the items, the trees, and arrays in separate files.  Raises Damage."""
    folders = by_folder(checkpoint)
    _check_arrays(folders)
    _check_items(checkpoint, folders)
    is_dense = _check_leaves(checkpoint, folders)
    judged = check_zarr(checkpoint, scope, is_dense=is_dense)
    names = {checkpoint.inner(file) for file in checkpoint.files}
    has_tree = any(name.endswith("manifest.ocdbt") for name in names)
    for file in checkpoint.files:
        name = checkpoint.inner(file)
        last = name.rsplit("/", 1)[-1]
        if name in judged:
            continue
        if last == "manifest.ocdbt":
            # The parts of the processes are read through the merged tree.
            merged = _OCDBT_PART.sub("", name)
            if merged != name and merged in names:
                check_ocdbt(read_small(checkpoint, file), name, scope)
            else:
                _check_tree(checkpoint, file, scope)
        elif last in _JSON or "array_metadatas/" in name or name.endswith(".json"):
            check_json(read_small(checkpoint, file), name)
        else:
            if not file.size_bytes:
                raise Damage(f"{name}: empty")
            scope.unprotected_bytes += file.size_bytes
            if not has_tree:  # a compressed file for each chunk of an array
                scope.by_name[name] = None


def _check_items(checkpoint: Checkpoint, folders: Folders) -> None:
    """Check the items named by a step: each must be present, with metadata.  Raises Damage."""
    for folder, files in folders.items():
        if _STEP in files:
            step = read_json(checkpoint, files[_STEP])
            items = step.get("item_handlers") if isinstance(step, dict) else None
            for item in items if isinstance(items, dict) else ():
                names = {name for path, inner in folders.items() for name in inner
                         if path.startswith(f"{folder}{item}/")}  # fmt: skip
                if names <= {_ENDED}:
                    raise Damage(f"{folder}{item}/: named in {_STEP} and not there")
        is_tree = "manifest.ocdbt" in files and not _OCDBT_PART.search(folder)
        is_orbax = _SHARDING in files or f"{folder}array_metadatas/" in folders
        is_orbax = is_orbax or any(_OCDBT_PART.match(path[len(folder) :]) for path in folders
                                   if path.startswith(folder))  # fmt: skip
        if is_tree and is_orbax and _ITEM not in files and "checkpoint" not in files:
            raise Damage(f"{folder}{_ITEM}: is missing")


def _check_leaves(checkpoint: Checkpoint, folders: Folders) -> bool:
    """Check that each array named by an item has a folder, for items with arrays outside a tree.
    Return whether the writer stores every chunk.  Raises Damage."""
    is_dense = False
    for folder, files in folders.items():
        data = read_json(checkpoint, files[_ITEM]) if _ITEM in files else None
        if not isinstance(data, dict) or data.get("use_ocdbt") is not False:
            continue
        is_dense = is_dense or data.get("store_array_data_equal_to_fill_value") is True
        mark = "zarr.json" if data.get("use_zarr3") is True else ".zarray"
        for name in _arrays_in(data.get("tree_metadata")):
            if mark not in folders.get(f"{folder}{name}/", {}):
                raise Damage(f"{folder}{name}/{mark}: is missing, and {folder}{_ITEM} names it")
    return is_dense


def _arrays_in(tree: object) -> Iterator[str]:
    """Yield the names of the arrays in a tree's metadata."""
    leaves = tree.values() if isinstance(tree, dict) else ()
    for leaf in (entry for entry in leaves if isinstance(entry, dict)):
        rows, value = leaf.get("key_metadata"), leaf.get("value_metadata")
        value = value if isinstance(value, dict) else {}
        is_array = value.get("value_type") in _ARRAY_TYPES
        if is_array and value.get("skip_deserialize") is False and isinstance(rows, list):
            yield ".".join(str(row.get("key")) for row in rows if isinstance(row, dict))


def _check_tree(checkpoint: Checkpoint, manifest: StoredFile, scope: Scope) -> None:
    folder = manifest.name.removesuffix("manifest.ocdbt")
    sizes = {
        file.name[len(folder) :]: file.size_bytes
        for file in checkpoint.files
        if file.name.startswith(folder)
    }

    def read(name: str, offset: int, length: int) -> bytes:
        return checkpoint.store.read(folder + name, offset, length)

    check_ocdbt_tree(
        read_small(checkpoint, manifest), checkpoint.inner(manifest), sizes, read, scope
    )


_ORBAX_NO_DATA = (_ITEM, _SHARDING, _ENDED)


def _check_arrays(folders: Folders) -> None:
    """Check for data files of the described arrays.  Raises Damage."""

    def below(start: str) -> list[str]:
        return [
            folder + name for folder, files in folders.items() if folder.startswith(start)
            for name in files
        ]  # fmt: skip

    for folder, files in folders.items():
        is_part = _OCDBT_PART.search(folder) is not None  # a process may have written nothing
        if (
            "manifest.ocdbt" in files
            and not is_part
            and not any(map(_OCDBT_DATA.search, below(folder)))
        ):
            raise Damage(f"{folder}d: the data files of manifest.ocdbt are missing")
        inner = [name[len(folder) :] for name in below(folder)] if not is_part else []
        parts = [name for name in inner if _OCDBT_PART.match(name)]
        if "manifest.ocdbt" not in files and any(
            name.endswith("/manifest.ocdbt") for name in parts
        ):
            raise Damage(
                f"{folder}manifest.ocdbt: is missing: only its parts of each process are there"
            )
        if parts and not any(map(_OCDBT_DATA.search, parts)):
            raise Damage(f"{folder}ocdbt.process_*: the data files are missing")
        if "_METADATA" in files and all(
            name in _ORBAX_NO_DATA or name.startswith("array_metadatas/") for name in inner
        ):
            raise Damage(f"{folder}_METADATA: describes arrays, and there are none")


_OCDBT_DATA = re.compile(r"(?:^|/)(?:d|ocdbt_[^/]+)/")  # nodes and values together, or apart
_OCDBT_PART = re.compile(r"(?:^|(?<=/))ocdbt\.process_[^/]+/")
