"""A tier with copies and their map, as docs/FORMAT-stage.md says, made without penstock.stage: the
redirector is tested against the format and not against whoever writes it."""

import os
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

MAGIC, VERSION, BYTE_ORDER = b"PSTKSTG\0", 1, 0x01020304
HEADER = struct.Struct("<8sIIQQQQQQQIIqI36x")
SLOT = struct.Struct("<QQQIIQqqIIQQIBB10x")
COMPARE_INODE = 1
RETIRED_AT = 88
STAGED_AT, DROPPED_AT = 84, 85
assert (HEADER.size, SLOT.size) == (128, 96)


def hash_of(path: bytes) -> int:
    """FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in path:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


class Tier:
    """A folder with copies of sources.  names: other absolute paths of a source, {name: source}."""

    name = "fast"

    def __init__(self, folder: Path, sources: Iterable[Path], names: dict[str, Path] | None = None):
        self.folder = Path(os.path.realpath(folder))
        self.map = self.folder / ".penstock" / "staged.map"
        self.slot_at: dict[bytes, int] = {}
        self.map.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "staged").mkdir(exist_ok=True)
        self.stage(sources, names)

    def copy_of(self, source: Path) -> Path:
        """Where the copy of a source lies."""
        return Path(f"{self.folder}/staged{os.path.realpath(source)}")

    def stage(self, sources: Iterable[Path], names: dict[str, Path] | None = None) -> None:
        """Copies the sources, and writes the map of these copies and no others."""
        rows = [(os.fsencode(os.path.realpath(source)), source) for source in sources]
        for _, source in rows:
            copy = self.copy_of(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, f"{copy}.part")
            status = source.stat()
            os.utime(f"{copy}.part", ns=(status.st_atime_ns, status.st_mtime_ns))
            Path(f"{copy}.part").replace(copy)
        self.write(rows + [(os.fsencode(name), source) for name, source in (names or {}).items()])

    def write(self, rows: list[tuple[bytes, Path]]) -> None:
        """A map with one slot for each row, in place of the one before."""
        slots = 4
        while slots < 2 * len(rows):
            slots *= 2
        blob_at = HEADER.size + slots * SLOT.size
        blob = bytearray(b"\0")
        table = bytearray(slots * SLOT.size)

        def text(data: bytes) -> int:
            at = blob_at + len(blob)
            blob.extend(data + b"\0")
            return at

        self.slot_at.clear()
        for path, source in rows:
            status, copy = source.stat(), os.fsencode(self.copy_of(source))
            number = hash_of(path)
            place = (number ^ number >> 32) & (slots - 1)
            while table[place * SLOT.size + 8 : place * SLOT.size + 16] != bytes(8):
                place = (place + 1) & (slots - 1)
            mtime, ctime = divmod(status.st_mtime_ns, 10**9), divmod(status.st_ctime_ns, 10**9)
            SLOT.pack_into(
                table, place * SLOT.size, number, text(path), text(copy), len(path), len(copy),
                status.st_size, mtime[0], ctime[0], mtime[1], ctime[1], status.st_ino,
                status.st_dev, COMPARE_INODE, 1, 0,
            )  # fmt: skip
            self.slot_at[path] = HEADER.size + place * SLOT.size
        name = self.name.encode()
        tier_at = text(name)
        size = blob_at + len(blob)
        header = HEADER.pack(
            MAGIC, VERSION, BYTE_ORDER, size, slots, HEADER.size, len(rows), blob_at, len(blob),
            tier_at, len(name), SLOT.size, 0, 0,
        )  # fmt: skip
        draft = self.map.with_name("staged.map.new")
        draft.write_bytes(header + table + blob)
        before = self.map.open("r+b") if self.map.exists() else None
        draft.replace(self.map)
        if before:
            with before:
                before.seek(RETIRED_AT)
                before.write(b"\1")

    def byte(self, source: Path, at: int, value: int | None = None) -> int:
        """A byte of a source's slot; set to `value` if that is given."""
        where = self.slot_at[os.fsencode(os.path.realpath(source))] + at
        with self.map.open("r+b") as file:
            file.seek(where)
            if value is not None:
                file.write(bytes([value]))
                return value
            return file.read(1)[0]

    def is_dropped(self, source: Path) -> bool:
        """Whether a program has dropped the copy of a source."""
        return self.byte(source, DROPPED_AT) == 1

    def mark(self, source: Path) -> None:
        """Makes a copy's content differ from its source's, size and time alike: who reads it shows
        which of the two was read."""
        copy = self.copy_of(source)
        status = copy.stat()
        copy.write_bytes(b"c" * status.st_size)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
