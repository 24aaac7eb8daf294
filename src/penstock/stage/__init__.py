"""Stage: choose files from a recorded run, copy them to the fast tier, serve opens from the copies.
docs/stage.md describes the use."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["map_of"]


def map_of(tier: str | Path, tell: Callable[[Sequence[str]], None] | None = None) -> Path:
    """Return the current map of a tier's copies, as for a program under `penstock run --staged`.

    tier: a name or a folder.  tell: is called with the changed sources of frozen copies; without
    tell, a warning names the first source.  Raises TierError: no tier of the name, or no staged
    file; TierGone: the tier's folder is missing.
    """
    from penstock.places.registry import tier_of
    from penstock.stage import frozen, manifest

    place = tier_of(tier)
    path = manifest.current_map(place)
    changed = frozen.check(place).changed
    if changed and tell is not None:
        tell(changed)
    elif changed:
        warnings.warn(
            f"{changed[0]} and {len(changed) - 1} more frozen files have changed since they were "
            "staged: the originals are read",
            stacklevel=2,
        )
    return path
