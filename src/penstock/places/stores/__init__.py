"""Stores of files: a local folder or an fsspec URL behind one interface.

Knows names, bytes, and the meaning of "durable" in each place; knows no checkpoint and no data set.
A name is relative, with / between the parts.  A put file is complete or absent; another process can
continue an upload in pieces.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingDependency, TierError
from penstock.places.stores.local import (
    LocalStore,
    Sparing,
    check_state,
    fsync_folder,
    make_folders,
)
from penstock.places.stores.remote import HttpStore, MemoryStore, ObjectStore
from penstock.places.stores.s3 import S3Store
from penstock.places.stores.sftp import SftpStore
from penstock.places.stores.store import (
    PART,
    STATE,
    Store,
    StoredFile,
    Upload,
    beside,
    draft_of,
    reason_of,
)

if TYPE_CHECKING:
    from penstock.places.stores.store import Store

__all__ = [
    "PART",
    "STATE",
    "LocalStore",
    "Sparing",
    "Store",
    "StoredFile",
    "Upload",
    "beside",
    "check_state",
    "draft_of",
    "fsync_folder",
    "make_folders",
    "open_store",
]

REMOTE_TIMEOUT_S = 30  # a server silent for so long is gone; the caller tries again


def open_store(url: str | os.PathLike[str], **options: Any) -> Store:
    """Open a local folder (existing or not), s3://, gs://, sftp://, memory:// or another fsspec
    URL.

    options: for fsspec's file system, for example key and endpoint_url.  Raises TierError: an
    unusable URL; MissingDependency: a missing package.
    """
    text = os.fspath(url)
    if not text:  # an unset variable would mean the program's working directory
        raise TierError("a tier without a name; name a folder or a URL")
    protocol, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(text)
    if protocol in ("file", "local"):
        return LocalStore(rest)
    fs, root = _file_system(text, protocol, options)
    if protocol in ("s3", "s3a"):
        return S3Store(text, fs, root)
    if protocol in ("sftp", "ssh"):
        return SftpStore(text, fs, root)
    if protocol == "memory":
        return MemoryStore(text, fs, root)
    if protocol in ("http", "https"):
        return HttpStore(text, fs, root)
    return ObjectStore(text, fs, root)


def _file_system(url: str, protocol: str, options: dict[str, Any]) -> tuple[Any, str]:
    needs = "a URL as a tier needs an extra: pip install 'penstock[remote]'"
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingDependency(needs) from error
    # Cached listings, and connections shared with the trainer, would both be wrong here.
    chosen: dict[str, Any] = {"skip_instance_cache": True}
    if protocol in ("sftp", "ssh"):
        chosen |= {"timeout": REMOTE_TIMEOUT_S, "host_key_policy": _known_hosts()}
    elif protocol != "memory":
        chosen["use_listings_cache"] = False
    try:
        fs, root = fsspec.core.url_to_fs(url, **{**chosen, **options})
    except ImportError as error:
        raise MissingDependency(f"{url}: {error}; {needs}") from error
    except TierError:
        raise
    except ValueError as error:
        raise TierError(f"{url}: {error}; name a folder, s3://, gs:// or sftp://") from error
    except Exception as error:  # each backend has other exceptions
        raise TierError(f"{url}: cannot be reached: {reason_of(error)}; try again later") from error
    return fs, str(root).rstrip("/")


def _known_hosts() -> Any:
    """Return ssh's policy for unknown hosts: no checkpoint goes to a server with an unknown key."""
    try:
        import paramiko
    except ModuleNotFoundError as error:
        needs = "sftp:// needs an extra: pip install 'penstock[remote]'"
        raise MissingDependency(needs) from error

    class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            for path in (Path.home() / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts")):
                if path.is_file() and paramiko.HostKeys(os.fspath(path)).check(hostname, key):
                    return
            raise TierError(
                f"{hostname}: its key is not in ~/.ssh/known_hosts; connect once with ssh and look"
            )

    return KnownHosts()
