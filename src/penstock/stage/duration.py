"""How long copying files of a run will take: of their reads in the run, and of a trial on the tier.

Knows evidence and copying; chooses nothing.
"""

import math
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock.installed import FOLDER
from penstock.places import tiers
from penstock.places.registry import Tier
from penstock.stage.copy import FAR_THREADS, THREADS, copy
from penstock.stage.evidence import Evidence
from penstock.stage.source import ASKED_AT_ONCE, LOCAL, WantedFile

__all__ = ["Duration", "duration"]

Array = NDArray[Any]

TRIED_FILES = 64  # about 50 ms in memory, some hundred ms on a disk with slow syncs
PREFIX = ".penstock-costs-"


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, at least and at most.

    How much faster several threads read than the run did is known only with a measured ceiling of
    the source; at least and at most are then equal.
    """

    least_s: float
    most_s: float


def duration(
    evidence: Evidence, is_copied: Array, tier: Tier, slow_bps: float | None
) -> Duration | None:
    """Estimate the duration of `copy` for the files; None: not known.

    Each file is opened and read once at the run's speed, and checked again; in parallel the bytes
    pass the ceilings of both tiers.  Before the copying each file is looked up, within a folder
    sequentially, as FUSE allows; each copy also needs work on the tier.  slow_bps: the source's
    ceiling; None: not measured.
    """
    files = np.flatnonzero(is_copied)
    if not len(files):
        return Duration(0.0, 0.0)
    read_s = _read_s(evidence, files, slow_bps)
    own_s = _own_s(tier)
    if read_s is None or own_s is None or not tier.write_bps:
        return None
    size = float(evidence.size_bytes[files].sum())
    check_s = float(np.broadcast_to(evidence.check_s, len(evidence))[files].sum())
    folders = {evidence.paths[place].rpartition("/")[0] for place in files.tolist()}
    each_s = check_s / min(ASKED_AT_ONCE, len(folders)) + own_s * len(files)
    read_s += check_s
    threads = _threads(evidence.paths[int(files[0])])
    readers = _readers(evidence)
    bytes_s = size / tier.write_bps
    # Reads of more readers than ours took longer, as the readers hindered each other.
    least_s = max(read_s / max(threads, readers), bytes_s) + each_s
    if slow_bps:
        least_s = max(least_s, size / slow_bps + each_s)
        return Duration(least_s, least_s)
    return Duration(least_s, max(read_s / readers, bytes_s) + each_s)


def _threads(path: str) -> int:
    try:
        return THREADS if tiers.mount_of(path).kind.partition(".")[0] in LOCAL else FAR_THREADS
    except (OSError, TierError):
        return THREADS


def _readers(evidence: Evidence) -> int:
    """Return the largest number of threads reading at once in the run; 1 for a run without
    workers."""
    if evidence.batches is None or not len(evidence.batches):
        return 1
    return int(evidence.batches.worker.max()) + 1


def _read_s(evidence: Evidence, files: Array, slow_bps: float | None) -> float | None:
    """Return the seconds for one thread to open and read each file once; None: not known.

    The run's calls give the time; a file without a read is estimated by the ceiling.
    """
    size, read = evidence.size_bytes[files], evidence.read_bytes[files]
    opens = np.maximum(evidence.opens[files], 1)
    is_known = (read > 0) & ~evidence.is_mapped[files]
    if not is_known.all() and not slow_bps:
        return None
    of_bytes = (evidence.time_s[files] - evidence.open_s[files]) * size / np.maximum(read, 1)
    by_calls = evidence.open_s[files] / opens + np.maximum(of_bytes, 0)
    by_ceiling = size / (slow_bps or math.inf)
    return float(np.where(is_known, by_calls, by_ceiling).sum())


def _own_s(tier: Tier) -> float | None:
    """Measure the seconds per small file besides waiting for the source: CPU, syncing, manifest.

    Copy Penstock's modules, in memory already, to the tier and remove the copies.  None: not
    possible.
    """
    modules = sorted(Path(FOLDER).rglob("*.py"))[:TRIED_FILES]
    with (
        suppress(OSError, TierError),
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=tier.path) as place,
    ):
        aside = replace(tier, path=Path(place), capacity_bytes=None, mount=None)
        copied = copy(aside, [WantedFile(str(path)) for path in modules])
        if copied.copied:
            return copied.seconds / copied.copied
    return None
