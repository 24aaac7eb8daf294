"""Note on the tier where a drain writes many copies, for the drain that follows a killed drain.

    FAST/burst/draft/many-ID    a link to FOLDER/., the folder of the copies; native/burst.c moves
                                the link when the program renames the folder
    FAST/burst/draft/names-ID   the names of the files on the tier, each with a zero byte

    FAST/burst/draft/placed-ID  the names of the files that are at their paths; written before the
                                links to the tier are removed

A note per folder and batch replaces a link or a mark per file.  The module knows names only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

__all__ = [
    "end_many",
    "end_placed",
    "is_of_many",
    "names_in",
    "note_many",
    "note_placed",
    "placed_in",
    "sweep_many",
]

LINK, NAMES, PLACED = "many-", "names-", "placed-"


def note_many(notes: str, of_folder: Mapping[str, Sequence[str]]) -> list[str]:
    """Note the copies about to be written, by folder.  Return the IDs of the notes."""
    made = []
    for number, (folder, names) in enumerate(of_folder.items()):
        note = f"{time.time_ns():x}-{number}"
        with suppress(OSError):  # a full tier: only the drain can empty the tier
            os.makedirs(notes, exist_ok=True)  # noqa: PTH103 - texts, as all of this module
            made.append(note)
            with open(f"{notes}/{NAMES}{note}", "xb") as file:
                file.write(b"".join(os.fsencode(name) + b"\0" for name in names))
            os.symlink(f"{folder}/.", f"{notes}/{LINK}{note}")  # noqa: PTH211
    return made


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder.  Raises OSError."""
    return os.listdir(folder)  # noqa: PTH208 - tens of thousands: a Path each costs seconds


def end_many(notes: str, made: Sequence[str]) -> None:
    """Remove notes whose copies are placed or removed."""
    for note in made:
        for kind in (LINK, NAMES):  # the link first: names without a link are of no use
            with suppress(OSError):
                os.unlink(f"{notes}/{kind}{note}")  # noqa: PTH108


def note_placed(notes: str, names: Sequence[str]) -> str:
    """Note the files at the program's paths.  Return the path of the note.  Raises OSError."""
    path = f"{notes}/{PLACED}{time.time_ns():x}"
    with open(path, "xb") as file:
        file.write(b"".join(os.fsencode(name) + b"\0" for name in names))
    return path


def placed_in(notes: str, entries: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the path of each note of placed files among `entries`, and the names in the note.  A
    drain killed in the middle of a note has removed no link, so a cut last name is left out."""
    folders = []
    for entry in entries:
        if entry.startswith(PLACED):
            with suppress(OSError), open(f"{notes}/{entry}", "rb") as file:
                names = [os.fsdecode(name) for name in file.read().split(b"\0")[:-1]]
                folders.append((f"{notes}/{entry}", [name for name in names if "/" not in name]))
    return folders


def end_placed(note: str) -> None:
    """Remove a note of placed files: the files are gone from the tier, or marked."""
    with suppress(OSError):
        os.unlink(note)  # noqa: PTH108 - a text


def is_of_many(name: str) -> bool:
    """Return True for the name of a note of this module."""
    return name.startswith((LINK, NAMES, PLACED))


def sweep_many(
    notes: str, is_on_tier: Callable[[str], bool], sweep: Callable[[str, str], None]
) -> None:
    """Sweep the leftovers of a killed drain, for each file no longer on the tier.  A file still on
    the tier is copied again, or dropped, and swept then.  sweep: receives a folder and a name.
    Raises OSError."""
    for entry in sorted(names_in(notes)):
        if not entry.startswith(NAMES):
            continue
        note, names = entry.removeprefix(NAMES), b""
        target = ""
        with suppress(OSError):
            target = os.readlink(f"{notes}/{LINK}{note}")  # noqa: PTH115
            with open(f"{notes}/{entry}", "rb") as file:
                names = file.read()
        gone = [
            name for name in map(os.fsdecode, names.split(b"\0")[:-1]) if not is_on_tier(name)
        ]  # fmt: skip
        for name in gone if target.startswith("/") else ():
            if "/" not in name:
                sweep(target.removesuffix("/."), name)
        if len(gone) == names.count(b"\0"):
            end_many(notes, [note])
