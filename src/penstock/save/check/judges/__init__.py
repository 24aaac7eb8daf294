"""Check whether one file of a checkpoint is whole, by the lengths and marks of the file's format.

Chooses the judge by the file's name and first bytes: `hdf5` (HDF5, Keras), `pickled` (torch.save
before 1.6, pickles), `arrays` (NumPy, GGUF), `packed` (msgpack, gzip), `trees` (XGBoost, CatBoost,
JLD2), and penstock.save.check.foreign for zip archives and safetensors.  A judge imports no
framework, unpickles nothing, reads within bounds, and compares every length with the file's size
before use.
"""

import re
from collections.abc import Callable
from typing import BinaryIO

from penstock.save.check.foreign import Damage, Scope, Unended, check_safetensors, check_zip
from penstock.save.check.judges.arrays import check_gguf, check_npy, is_gguf, is_npy
from penstock.save.check.judges.hdf5 import SIGNATURE, check_hdf5
from penstock.save.check.judges.packed import GZIP, check_gzip, check_msgpack
from penstock.save.check.judges.pickled import check_pickles, is_pickle
from penstock.save.check.judges.trees import CBM, check_cbm, check_jld2, check_ubjson

__all__ = ["check_file", "is_text"]

_TORCH = (".pt", ".pth", ".ckpt", ".pt2")
_HDF5 = (".h5", ".hdf5", ".he5", ".hdf")
_PICKLES = (".pkl", ".pickle", ".joblib")
# Any program may call its weights model.bin (CTranslate2's weights have no container format).
# These names are used by torch only.
_TORCH_BIN = re.compile(
    r"(.*pytorch_model|adapter_model|training_args|optimizer|scheduler|sampler|scaler)(?![a-z]).*\.bin"
)
_ZIP, _ZIP_END, _ZIP_END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"x")
HEAD_BYTES, MOST_TEXT_BYTES = 512, 64 << 10


def check_file(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check a file by its ending and first bytes.

    Adds to `scope` the bytes compared with checksums, the bytes without a checksum, and the name of
    a file in which nothing could be checked.  Raises Damage.
    """
    if not size_bytes:
        raise Unended(f"{name}: empty")
    if name.endswith(".safetensors"):
        check_safetensors(file, name, size_bytes, scope)
        return
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    judge = _judge_by_length(name, head)
    if head.startswith(_ZIP):
        check_zip(file, name, scope)
    elif judge is not None:
        judge(file, name, size_bytes, scope)
    elif name.endswith((".keras", ".npz")):
        _check_without_zip(name, head, size_bytes)
    elif name.endswith(_TORCH) or _is_torch_bin(file, name, size_bytes):
        _check_torch(file, name, size_bytes, scope, head)
    elif name.endswith(_PICKLES):
        _check_pickles(file, name, size_bytes, scope, head)
    elif name.endswith(".cbm") and not any(head):
        raise _no(name, head)
    elif name.endswith(".bin") or not is_text(file, size_bytes):
        _unchecked(name, size_bytes, scope)
    else:
        scope.unprotected_bytes += size_bytes


_LengthJudge = Callable[[BinaryIO, str, int, Scope], None]


def _judge_by_length(name: str, head: bytes) -> _LengthJudge | None:
    """Return the check of a format whose header states the lengths, by the ending or the first
    bytes; None: another format."""
    rows: tuple[tuple[bool, _LengthJudge], ...] = (
        (name.endswith(_HDF5) or head.startswith(SIGNATURE), check_hdf5),
        (name.endswith(".npy") or is_npy(head), check_npy),
        (name.endswith(".gguf") or is_gguf(head), check_gguf),
        (name.endswith((".msgpack", ".mpk")), check_msgpack),
        (name.endswith(".ubj") and head[:1] in (b"{", b"[", b"\0"), check_ubjson),
        (head.startswith(CBM), check_cbm),
        (name.endswith(".jld2"), check_jld2),
        (name.lower().endswith((".tar.gz", ".tgz")) and head.startswith(GZIP), check_gzip),
    )
    return next((judge for is_match, judge in rows if is_match), None)


def _check_without_zip(name: str, head: bytes, size_bytes: int) -> None:
    """Check an archive that does not begin as one.  Raises Damage."""
    is_without_arrays = head.startswith(_ZIP_END) and size_bytes == _ZIP_END_BYTES
    if not (name.endswith(".npz") and is_without_arrays):
        raise _no(name, head)


def _check_torch(file: BinaryIO, name: str, size_bytes: int, scope: Scope, head: bytes) -> None:
    """Check a file of torch that is no archive.  Raises Damage."""
    if is_pickle(head):
        check_pickles(file, name, size_bytes, scope)
    elif head[257:262] == b"ustar":  # torch before 0.1.10
        _unchecked(name, size_bytes, scope, "a tar archive")
    elif _was_torch_s(file, head, size_bytes):
        raise _no(name, head)
    else:  # a format of the program's own, encrypted or compressed
        _unchecked(name, size_bytes, scope, "no file of torch")


def is_text(file: BinaryIO, size_bytes: int) -> bool:
    """Return whether a file is a text (a licence, a pointer, settings).  Weights never are."""
    if size_bytes > MOST_TEXT_BYTES:
        return False
    file.seek(0)
    try:
        text = file.read(MOST_TEXT_BYTES).decode()
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter.isspace() for letter in text)


_LEGACY_MAGIC = b"l\xfc\x9cF\xf9 j\xa8P\x19"  # torch.serialization.MAGIC_NUMBER, as pickled


def _was_torch_s(file: BinaryIO, head: bytes, size_bytes: int) -> bool:
    """Return whether a file with torch's ending shows that torch wrote the file and the beginning
    was lost, or that the content cannot be a state (zeros, a text)."""
    if not any(head[:8]) or _LEGACY_MAGIC in head or _ZIP in head or is_text(file, size_bytes):
        return True
    file.seek(max(0, size_bytes - MOST_TEXT_BYTES))
    tail = file.read(MOST_TEXT_BYTES)
    return _ZIP_END in tail or b"PK\x01\x02" in tail


def _no(name: str, head: bytes) -> Damage:
    what = "zeros where it begins: never written" if not any(head[:8]) else "cut or damaged"
    return Unended(f"{name}: {what}")


def _unchecked(name: str, size_bytes: int, scope: Scope, why: str = "") -> None:
    scope.unprotected_bytes += size_bytes
    scope.unchecked[name] = None
    if why:
        scope.remarks[f"{name}: {why}: not followed"] = None


def _check_pickles(file: BinaryIO, name: str, size_bytes: int, scope: Scope, head: bytes) -> None:
    if is_pickle(head):
        check_pickles(file, name, size_bytes, scope)
    elif not any(head):
        raise _no(name, head)
    else:
        why = "compressed" if head.startswith(_COMPRESSED) else "no pickle of protocol 2 or newer"
        _unchecked(name, size_bytes, scope, why)


def _is_torch_bin(file: BinaryIO, name: str, size_bytes: int) -> bool:
    """Return whether a .bin file is torch's, by name or, if the head is damaged, by the end."""
    if not name.endswith(".bin"):
        return False
    if _TORCH_BIN.fullmatch(name.rpartition("/")[2]):
        return True
    file.seek(max(0, size_bytes - _ZIP_END_BYTES))
    return file.read(len(_ZIP_END)) == _ZIP_END
