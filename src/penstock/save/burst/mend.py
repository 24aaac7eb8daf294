"""Repair the remains of a lost node's burst buffer: links without data, drafts, links to other
tiers."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from penstock.save.burst.file import FOLDER, LEFT_BY_DRAIN, LINK, NEW, ON_A_TIER, OWNER, _target
from penstock.save.overwritten.earlier import Mended, roll_back
from penstock.save.overwritten.mixture import end_mixtures

__all__ = ["led_elsewhere", "listed", "mend", "search"]

MOST_SEARCHED = 20_000  # entries of folders, in the search for a link renamed without notice
DEEPEST = 5


def search(
    roots: Iterable[Path], deepest: float = DEEPEST, most: int = MOST_SEARCHED
) -> dict[str, Path]:
    """Return the links below folders, by target.  deepest: levels of folders; most: entries."""
    links: dict[str, Path] = {}
    seen = 0
    for root in roots:
        if root == Path("/"):
            continue
        stack = [(root, 0)]
        while stack and seen < most:
            folder, depth = stack.pop(0)
            with suppress(OSError), os.scandir(folder) as scan:
                for entry in islice(scan, most - seen):
                    seen += 1
                    if entry.is_symlink():
                        if not entry.name.endswith((LINK, NEW)):
                            links.setdefault(_target(Path(entry.path)), Path(entry.path))
                    elif depth < deepest and entry.is_dir(follow_symlinks=False):
                        stack.append((Path(entry.path), depth + 1))
    return links


def mend(slow: str | os.PathLike[str], fast: str | os.PathLike[str]) -> list[Mended]:
    """Repair the links below `slow` with targets lost together with a fast tier.

    For a save that is not home completely, put back the earlier files, if present; remove the other
    links.  For a save that the program has not ended, put back the earlier save.  Raises TierError,
    OSError."""
    data = os.fspath(Path(os.path.realpath(fast)) / FOLDER / "data") + "/"
    lost: dict[Path, list[tuple[str, str]]] = {}
    links = search([Path(os.path.realpath(slow))], math.inf, sys.maxsize)
    for target, place in sorted(links.items()):
        if target.startswith(data) and not os.path.lexists(target):
            lost.setdefault(place.parent, []).append((place.name, Path(target).name[OWNER]))
    mended = []
    for folder, files in lost.items():
        mended += roll_back(folder, [name for name, _ in files])
        for owner in {owner for _, owner in files}:
            _sweep_lost(folder, owner)
    return mended + end_mixtures(Path(os.path.realpath(slow)))


def _sweep_lost(folder: Path, owner: str) -> None:
    """Remove the leftovers of the drain of a run with a lost tier from a program's folder."""
    for leftover in folder.iterdir():
        match = LEFT_BY_DRAIN.fullmatch(leftover.name)
        if match and match["name"][OWNER] == owner:
            leftover.unlink(missing_ok=True)


def led_elsewhere(
    folders: Iterable[str | os.PathLike[str]],
    fast: str | os.PathLike[str],
    owner: str = "",
    deepest: int = DEEPEST,
) -> list[str]:
    """Return a sentence for each other fast tier to which links below the folders lead.

    The other tier has another path, or the same path on another node, and belongs to an earlier
    job.  The earlier job's files are not home, and can come home only from the other tier.  owner:
    the run to skip, as a run may have a tier on each node."""
    mine = os.path.realpath(fast)
    by_tier: dict[tuple[str, Path], list[Path]] = {}
    for folder in folders:
        root = Path(os.path.realpath(folder))
        for target, place in search([root], deepest).items():
            match = ON_A_TIER.fullmatch(target)
            is_here = match and match["tier"] == mine and os.path.lexists(target)
            if match and not is_here and match["name"][OWNER] != owner:
                by_tier.setdefault((match["tier"], root), []).append(place)
    return [
        f"{listed(sorted(places))}: on the fast tier {tier} of "
        f"{'another node' if tier == mine else 'a job before'}: where that job has ended, "
        f"`penstock save recover {tier} {root}` brings home what is there, and puts back what was "
        "there before what is lost"
        for (tier, root), places in by_tier.items()
    ]


def listed(places: Sequence[Path]) -> str:
    return f"{places[0]}" + (f" and {len(places) - 1} more" if len(places) > 1 else "")
