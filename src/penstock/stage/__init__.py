"""Stage: the right files on the fast tier, chosen from a recorded run; the copies that opens are
served from.  docs/stage.md says how it is used."""

from pathlib import Path

__all__ = ["map_of"]


def map_of(tier: str | Path) -> Path:
    """The map of a tier's copies, up to date: what `penstock run --staged` hands to the program.

    tier: its name, or its folder.  Raises TierError: no such tier, nothing is staged; TierGone:
    the tier is not there.
    """
    from penstock.places.registry import tier_of
    from penstock.stage import manifest

    return manifest.current_map(tier_of(tier))
