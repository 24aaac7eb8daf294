"""Decode a record's bytes: a tar's sample, JPEG and other pictures, Caffe's Datum, npy.

Each decoder is a small function of bytes.  The module never unpickles: a pickle is a program, and
only the user may decide to run a pickle.  A pickle is reported and left unchanged.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, MissingDependency
from penstock.feed import tar

__all__ = [
    "DATUM",
    "PICKLE",
    "SAMPLE",
    "Datum",
    "content_of",
    "datum",
    "decoded",
    "image",
    "npy",
    "sample",
]

Data = bytes | memoryview

NPY = b"\x93NUMPY"
# First bytes → kind of content.  The first match counts.
MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (NPY, "npy"),
    (b"PK\x03\x04", "zip (npz, or torch.save)"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"ARROW1", "Arrow"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"fLaC", "FLAC"),
    (b"OggS", "Ogg"),
)
PICTURES = ("JPEG", "PNG", "GIF", "BMP", "WebP")
PICKLE, SAMPLE, DATUM = "pickle", "tar sample", "Caffe Datum"
MAX_VARINT_BYTES = 10  # protocol buffers: 64 bits, seven bits per byte
FIELDS = {1: "channels", 2: "height", 3: "width", 5: "label"}


@dataclass(frozen=True, slots=True)
class Datum:
    """Caffe's record.

    data: raw uint8 of (channels, height, width), or an encoded picture file if is_encoded.  floats:
    values instead of data, in equal order.
    """

    channels: int
    height: int
    width: int
    label: int
    data: memoryview
    floats: NDArray[np.float32]
    is_encoded: bool

    def array(self) -> NDArray[Any]:
        """Return the values as (channels, height, width), uint8 or float32.

        An encoded picture is returned as (height, width, 3).  Raises FeedError: the number of
        values does not match the shape.
        """
        if self.is_encoded:
            return image(self.data)
        values: NDArray[Any] = (
            self.floats if len(self.floats) else np.frombuffer(self.data, np.uint8)
        )
        shape = (self.channels, self.height, self.width)
        if min(shape) < 0 or len(values) != self.channels * self.height * self.width:
            raise FeedError(f"a Datum of shape {shape} with {len(values):,} values; it is damaged")
        return values.reshape(shape)


def content_of(record: Data) -> str:
    """Return the kind of a record in a word or two; "bytes" if unknown."""
    view = memoryview(record).cast("B")
    head = bytes(view[:512])
    for magic, name in MAGICS:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if tar.is_tar(head):
        return SAMPLE
    # Pickles from protocol 2 on begin with the protocol number; every pickle ends with a stop.
    if len(view) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and view[-1] == ord("."):
        return PICKLE
    if len(view) > 6 and head[0] == 0x78 and head[1] in (0x01, 0x5E, 0x9C, 0xDA):
        return "zlib (often with a pickle in it)"
    try:
        if _is_whole(datum(record)):
            return DATUM
    except FeedError:
        pass
    return "text" if _is_text(head) else "bytes"


def _is_whole(record: Datum) -> bool:
    n_values = record.channels * record.height * record.width
    if record.is_encoded:
        return len(record.data) > 0
    return n_values > 0 and n_values == max(len(record.data), len(record.floats))


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and _is_text(head[: error.start])  # cut in a character
    return bool(text) and all(letter.isprintable() or letter.isspace() for letter in text)


def decoded(record: Data) -> Any:
    """Return a picture or an npy as an array, a Datum or a tar's sample, by the first bytes.

    Raises FeedError: another kind, named in the message.
    """
    content = content_of(record)
    if content in PICTURES:
        return image(record)
    if content == "npy":
        return npy(record)
    if content == DATUM:
        return datum(record)
    if content == SAMPLE:
        return sample(record)
    if content == PICKLE:
        raise FeedError(
            "the record is a pickle, and to load one is to run it; where you trust who made it, "
            "pickle.loads(record) does"
        )
    raise FeedError(f"no decoder here for a record that looks like {content}; decode its bytes")


def sample(record: Data) -> dict[str, memoryview]:
    """Return the members of a tar's record by extension, with WebDataset's names.

    Raises FeedError: no tar, or two members with an equal extension.
    """
    view = memoryview(record).cast("B")
    members: dict[str, memoryview] = {}
    key = None
    read = _slices(view)
    for member in tar.members(read, 0, len(view), "the record", is_part=True):
        parts = tar.name_parts(member.name)
        if parts is None or parts[0] != (key := key if key is not None else parts[0]):
            continue
        if parts[1] in members:
            raise FeedError(f"two members {member.name!r} in one sample; the tar was made wrong")
        members[parts[1]] = view[member.data : member.data + member.size]
    if not members:
        raise FeedError("the record holds no member of a tar; was its data set one?")
    return members


def _slices(view: memoryview) -> tar.Read:
    return lambda offset, n_bytes: view[offset : offset + n_bytes]


def image(record: Data) -> NDArray[np.uint8]:
    """Return a picture as (height, width, 3), RGB.

    Raises MissingDependency: Pillow is missing.  Raises FeedError: the picture is damaged.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "pictures are decoded by Pillow: pip install 'penstock[images]'"
        ) from error
    try:
        with Image.open(io.BytesIO(record)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FeedError(f"a picture that cannot be decoded: {error}") from error


def npy(record: Data) -> NDArray[Any]:
    """Return a numpy array from a file's bytes.

    Raises FeedError: not an npy, or an array of objects, which needs unpickling.
    """
    if bytes(memoryview(record)[: len(NPY)]) != NPY:
        raise FeedError(f"no npy but {content_of(record)}; an npz is for numpy.load")
    try:
        array_: NDArray[Any] = np.load(io.BytesIO(record), allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python source
        raise FeedError(f"no npy that can be read without running it: {error}") from error
    return array_


# --- Caffe's Datum, a protocol buffer (caffe.proto) -----------------------------------------------


def datum(record: Data) -> Datum:
    """Return a record of Caffe's convert_imageset.

    Raises FeedError: not a Datum.
    """
    numbers = {"channels": 0, "height": 0, "width": 0, "label": 0}
    data = memoryview(b"")
    floats: list[bytes] = []
    is_encoded = False
    for field, kind, value in _fields(memoryview(record).cast("B")):
        if field in FIELDS and kind == 0:
            signed = value - (1 << 64) if value >> 63 else value
            numbers[FIELDS[field]] = signed
        elif field == 4 and kind == 2:
            data = value
        elif field == 6 and kind in (2, 5):
            floats.append(bytes(value))
        elif field == 7 and kind == 0:
            is_encoded = bool(value)
        else:
            raise FeedError(f"no Datum: it has a field {field} of type {kind}")
    packed = b"".join(floats)
    if len(packed) % 4:
        raise FeedError("a Datum whose floats are cut off; it is damaged")
    return Datum(**numbers, data=data, floats=np.frombuffer(packed, "<f4"), is_encoded=is_encoded)


def _fields(view: memoryview) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield field, kind, value
            continue
        n_bytes = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            n_bytes, at = _varint(view, at)
        elif not n_bytes:
            raise FeedError(f"no protocol buffer: a field of type {kind}")
        if n_bytes > len(view) - at:
            raise FeedError(
                "a protocol buffer whose field reaches beyond its end; damaged, or none"
            )
        yield field, kind, view[at : at + n_bytes]
        at += n_bytes


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(view[at : at + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + place + 1
    raise FeedError("a protocol buffer with a number that does not end; damaged, or none")
