"""Read the files inside a checkpoint: by folder, and small files in full.

The module knows no format.
"""

from collections.abc import Iterable
from contextlib import closing

from penstock.places.stores import StoredFile
from penstock.save.check.foreign import Damage, check_json, torch_top
from penstock.save.checkpoint import Checkpoint

__all__ = ["Folders", "by_folder", "read_json", "read_small", "top_of"]

MOST_SMALL_BYTES = 64 << 20  # of JSON and text beside a framework's tensors

Folders = dict[str, dict[str, StoredFile]]


def by_folder(checkpoint: Checkpoint) -> Folders:
    """Return the files by folder within the checkpoint, and by name within the folder.  The name of
    a folder ends in a slash."""
    folders: Folders = {}
    for file in checkpoint.files:
        folder, slash, name = checkpoint.inner(file).rpartition("/")
        folders.setdefault(folder + slash, {})[name] = file
    return folders


def read_small(
    checkpoint: Checkpoint, file: StoredFile, most_bytes: int = MOST_SMALL_BYTES
) -> bytes:
    """Return the content of a file.  Raises Damage: the file is larger than most_bytes."""
    if file.size_bytes > most_bytes:
        raise Damage(
            f"{checkpoint.inner(file)}: {file.size_bytes:,} bytes; more than {most_bytes:,} are "
            "not read"
        )
    return checkpoint.store.read(file.name)


def read_json(checkpoint: Checkpoint, file: StoredFile) -> object:
    """Return the value of a JSON file.  Raises Damage."""
    value: object = check_json(read_small(checkpoint, file), checkpoint.inner(file))
    return value


def top_of(
    checkpoint: Checkpoint, stored: StoredFile, fields: Iterable[str] = ()
) -> dict[str, object]:
    """Return the keys at the top of a file of torch.save, without unpickling (see torch_top)."""
    with closing(checkpoint.store.open(stored.name)) as file:
        return torch_top(file, fields)
