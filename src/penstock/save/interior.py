"""Read the files inside a checkpoint: by folder, and small files in full.

The module knows no format.
"""

from collections.abc import Iterable
from contextlib import closing

from penstock.places.stores import StoredFile
from penstock.save.checkpoint import Checkpoint
from penstock.save.foreign import Damage, check_json, torch_top

__all__ = ["Folders", "by_folder", "read_json", "read_small", "top_of"]

MOST_SMALL_BYTES = 64 << 20  # of JSON and text beside a framework's tensors

Folders = dict[str, dict[str, StoredFile]]


def by_folder(checkpoint: Checkpoint) -> Folders:
    """Return the files by folder within the checkpoint, and by name within the folder.  The name of
    a folder ends in a slash."""
    folders: Folders = {}
    for found in checkpoint.files:
        folder, slash, name = checkpoint.inner(found).rpartition("/")
        folders.setdefault(folder + slash, {})[name] = found
    return folders


def read_small(
    checkpoint: Checkpoint, found: StoredFile, most_bytes: int = MOST_SMALL_BYTES
) -> bytes:
    """Return the content of a file.  Raises Damage: the file is larger than most_bytes."""
    if found.size_bytes > most_bytes:
        raise Damage(
            f"{checkpoint.inner(found)}: {found.size_bytes:,} bytes; more than {most_bytes:,} are "
            "not read"
        )
    return checkpoint.store.read(found.name)


def read_json(checkpoint: Checkpoint, found: StoredFile) -> object:
    """Return the value of a JSON file.  Raises Damage."""
    value: object = check_json(read_small(checkpoint, found), checkpoint.inner(found))
    return value


def top_of(
    checkpoint: Checkpoint, found: StoredFile, fields: Iterable[str] = ()
) -> dict[str, object]:
    """Return the keys at the top of a file of torch.save, without unpickling (see torch_top)."""
    with closing(checkpoint.store.open(found.name)) as file:
        return torch_top(file, fields)
