"""Read data sets in object stores: list the objects below a prefix, read records.

`RemoteReads` fills a Reader's requests through `transfer`, as the engine of native/feed does for
files.  An answer with another version than indexed is refused with the object's name, so a portion
holds bytes of a single version or none.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed.folder import Listing
from penstock.feed.object_stores import StoredObject, object_at, store_of
from penstock.feed.spans import Advance, LeftOut, left_out
from penstock.feed.transfer import ObjectRange, Ongoing, Seen, transfers

if TYPE_CHECKING:
    from penstock.feed.folder import Listing
from penstock.feed.object_stores import Listed

__all__ = ["RemoteReads", "is_object", "listed_states", "listing", "matching", "names_in", "states"]

ASKED_AT_ONCE = 64  # HEADs
KEPT_OBJECTS = 10_000  # shards; the objects of a folder are looked up each time


def states(files: Sequence[str], progress: Advance | None = None) -> list[Seen]:
    """Return the present version of each object, by many requests at once.

    Raises FeedError: an object is missing.
    """
    states_seen: list[Seen] = []
    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="penstock-head") as pool:
        try:
            for state in pool.map(lambda url: object_at(url).state(), files):
                states_seen.append(state)
                if progress is not None and len(states_seen) % 64 == 0:
                    progress(len(states_seen), len(files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return states_seen


def listed_states(files: Sequence[str]) -> list[Seen] | None:
    """Return the present version of each object by a listing of the common prefix.

    None: the listing states no versions.  Raises FeedError: an object is missing.
    """
    first, last = min(files), max(files)
    pairs = zip(first, last, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), len(first))
    store, start = store_of(first[: first.rindex("/", 0, same) + 1])
    by_url = {store.root + each.key: each.seen for each in store.listed(start)}
    seen_all = []
    for url in files:
        if url not in by_url:
            raise FeedError(f"{url}: the object is not there any more; open the data set again")
        seen = by_url[url]
        if seen is None:
            return None
        seen_all.append(seen)
    return seen_all


def is_object(url: str) -> bool:
    """Return True for the address of an object, False for a prefix.  Raises FeedError: unknown."""
    try:
        object_at(url).state()
    except FeedError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    return True


def names_in(prefix: str) -> list[str]:
    """Return the sorted addresses of all objects below a prefix that ends with a slash."""
    store, _ = store_of(prefix)
    return [store.root + each.key for each in _objects_in(prefix)]


def _objects_in(prefix: str) -> list[Listed]:
    """Return the sorted objects below a prefix, without markers of empty folders."""
    store, start = store_of(prefix)
    objects = (each for each in store.listed(start) if not each.key.endswith("/"))
    return sorted(objects, key=lambda each: each.key.encode())


def listing(root: str, progress: Advance | None = None) -> Listing:
    """Return all objects below root except hidden objects.  Raises FeedError."""
    prefix = root if root.endswith("/") else f"{root}/"
    store, start = store_of(prefix)
    listed, passed = [], []
    for each in _objects_in(prefix):
        name = each.key[len(start) :]
        if any(part.startswith(".") for part in name.split("/")):
            passed.append(LeftOut("hidden file", "", 1, (name,)))
        else:
            listed.append(each)
    files = [store.root + each.key for each in listed]
    keys = [each.key[len(start) :].encode() for each in listed]
    known_states = [each.seen for each in listed if each.seen is not None]
    seen = known_states if len(known_states) == len(listed) else states(files, progress)
    state = np.array(seen, np.int64).reshape(-1, 3)
    return Listing(files, keys, state, left_out(passed))


def matching(pattern: str) -> list[str]:
    """Return the addresses that match a pattern of keys; `*` stops at a slash, `**` does not."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    store, start = store_of(fixed)
    text = re.escape(store.root) + "".join(_translated(store_of(pattern)[1]))
    matches = re.compile(text, re.DOTALL).fullmatch
    urls = (store.root + each.key for each in store.listed(start))
    return sorted(url for url in urls if matches(url) and not url.endswith("/"))


def _translated(pattern: str) -> Iterator[str]:
    """Yield the parts of a regular expression for a glob pattern of keys."""
    for part in re.split(r"(\*\*/?|\*|\?|\[[^]]+\])", pattern):
        if part.startswith("**"):
            yield "(?:.*/)?" if part.endswith("/") else ".*"
        elif part == "*":
            yield "[^/]*"
        elif part == "?":
            yield "[^/]"
        elif part.startswith("["):
            yield fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z")
        else:
            yield re.escape(part)


# --- reads ---------------------------------------------------------------------------------------


class RemoteReads:
    """Reads of indexed objects, for one Reader."""

    def __init__(self, files: Sequence[str], seen: Callable[[int], Seen]) -> None:
        self._files = files
        self._seen = seen
        self._objects: dict[int, tuple[StoredObject, Seen]] = {}
        self._ongoing = Ongoing()
        self.why: dict[int, str] = {}  # for the failed requests of the last call

    def read(
        self,
        requests: NDArray[np.void],
        file: NDArray[np.uint32],
        memory: NDArray[np.uint8],
        depth: int,
        local: object = None,
    ) -> tuple[int, int]:
        """Fill the requests, an array of read.REQUEST with destinations in memory.

        Return (ns, sum of the requests' ns).  local: unused, as no byte is on the node.
        """
        begun = time.perf_counter_ns()
        view = memory.data
        starts = (requests["destination"] - np.uint64(memory.ctypes.data)).tolist()
        parts = [
            ObjectRange(*self._object(number), first, view[start : start + length])
            for number, first, start, length in zip(
                file.tolist(),
                requests["offset"].tolist(),
                starts,
                requests["length"].tolist(),
                strict=True,
            )
        ]
        transfers().read(parts, depth, self._ongoing)
        requests["error"] = [part.error for part in parts]
        requests["moved"] = [0 if part.error else part.length for part in parts]
        requests["latency_ns"] = [part.latency_ns for part in parts]
        self.why = {number: part.why for number, part in enumerate(parts) if part.error}
        return time.perf_counter_ns() - begun, sum(part.latency_ns for part in parts)

    def cancel(self) -> None:
        """End another thread's read: the missing requests fail."""
        self._ongoing.cancel()

    def close(self) -> None:
        """Do nothing: no descriptor is open."""

    def _object(self, number: int) -> tuple[StoredObject, Seen]:
        if len(self._files) > KEPT_OBJECTS:
            return object_at(self._files[number]), self._seen(number)
        entry = self._objects.get(number)
        if entry is None:
            entry = (object_at(self._files[number]), self._seen(number))
            self._objects[number] = entry
        return entry
