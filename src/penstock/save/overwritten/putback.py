"""List the files of a folder that were put back from an older save and belong to no newer save.

    FOLDER/.penstock-put-back.json   {"version": 1, "files": {NAME: [size_bytes, mtime_ns]}}

An entry counts only while the file has the listed size and time: a save that replaces the file ends
the mark.  The module knows stores and names, no burst buffer and no format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = [
    "ASIDE",
    "BEFOREHAND",
    "MARK",
    "TWO_SAVES",
    "is_state",
    "mark_put_back",
    "mixed",
    "put_back",
]

MARK = ".penstock-put-back.json"
TWO_SAVES = ".penstock-two-saves.json"  # the mark of penstock.save.overwritten.mixture
# The mark of penstock.save.overwritten.mixture before the files move.  The name is hidden from a
# program under --burst-buffer, and the file is removed with the folder.
BEFOREHAND = ".two-saves.penstock-new"
VERSION = 1
MOST_BYTES = 16 << 20  # about 200,000 files
# Files without state have an equal text in each save.  Hidden files (DCP's .metadata has the places
# of values, not the values) and texts from another save make no mixture.
_TEXTS = (".json", ".txt", ".md", ".yaml", ".yml", ".jinja", ".py", ".html", ".log", ".csv")
ASIDE = (".newer", ".torn")  # suffixes of files that the burst buffer has put aside
_TOKENS = ("tokenizer", "spiece", "sentencepiece", "vocab", "merges")


def put_back(store: Store, folder: str = "") -> dict[str, tuple[int, int]]:
    """Return the size in bytes and the time in ns of each put-back file of a store's folder, as
    listed, by name in the folder.  Empty: no file was put back, or the list is damaged."""
    name = f"{folder.strip('/')}/{MARK}".lstrip("/")
    with suppress(TierError, ValueError, RecursionError):
        status = store.stat(name)
        if status is not None and status.size_bytes <= MOST_BYTES:
            return _parse(store.read(name, 0, MOST_BYTES))
    return {}


def _parse(data: bytes) -> dict[str, tuple[int, int]]:
    record = json.loads(data)
    if not isinstance(record, dict) or record.get("version") != VERSION:
        return {}
    rows = record.get("files")
    return {
        name: (facts[0], facts[1])
        for name, facts in (rows.items() if isinstance(rows, dict) else ())
        if isinstance(facts, list) and [type(fact) for fact in facts] == [int, int]
    }


def mark_put_back(folder: Path, files: Mapping[str, tuple[int, int]]) -> None:
    """Add files of a folder to the list of put-back files, and drop listed files that have changed
    since.  Remove the list if no file is left.  Raises TierError, OSError."""
    store = LocalStore(folder, makes_folders=False)
    listed = put_back(store)
    kept = {name: facts for name, facts in listed.items() if _facts(folder / name) == facts}
    wanted = {**kept, **files}
    if not wanted:
        store.delete(MARK)
    elif wanted != listed:
        record = {
            "version": VERSION,
            "files": {name: list(wanted[name]) for name in sorted(wanted)},
        }
        # Readers of the checkpoint need the list.
        store.put(MARK, [json.dumps(record, indent=1).encode()], mode=0o644)


def _facts(path: Path) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        status = path.lstat()
        return status.st_size, status.st_mtime_ns
    return None


def mixed(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint is a mixture of two saves: some files, and not all, were put back
    from an older save.  Empty: no mixture is known."""
    if not isinstance(checkpoint.store, LocalStore):
        return ""  # files are put back below folders only
    listed: dict[str, dict[str, tuple[int, int]]] = {}
    n_back = n_files = 0
    for file in checkpoint.files:
        folder, _, name = file.name.rpartition("/")
        if not is_state(name):
            continue
        if folder not in listed:
            listed[folder] = put_back(checkpoint.store, folder)
        n_files += 1
        n_back += listed[folder].get(name) == (file.size_bytes, file.mtime_ns)
    if not 0 < n_back < n_files:
        return ""
    return f"mixed: {n_back} of its {n_files} files were put back from an older save"


def is_state(name: str) -> bool:
    """Return whether a file's bytes change from save to save."""
    return not (name.endswith((*_TEXTS, *ASIDE)) or name.startswith((".", *_TOKENS)))
