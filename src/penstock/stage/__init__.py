"""Stage: choose files from a recorded run, copy them to the fast tier, serve opens from the copies.
docs/stage.md describes the use."""

from pathlib import Path

__all__ = ["map_of"]


def map_of(tier: str | Path) -> Path:
    """Return the map of a tier's copies, up to date, as `penstock run --staged` hands it to the
    program.

    tier: its name or its folder.  Raises TierError: no such tier, or no staged file; TierGone: the
    tier's folder is missing.
    """
    from penstock.places.registry import tier_of
    from penstock.stage import manifest

    return manifest.current_map(tier_of(tier))
