"""A file with a fixed name stays on the fast tier beside the newest saves, however old."""

from pathlib import Path

from penstock.save.drain.retention import Keep
from saves import drained, state

T = 1_700_000_000  # long ago: nothing more is expected of these saves
NEWEST = Keep(fast=1, last=9, foreign=True)


def left(tier: Path) -> set[str]:
    """The names of the states in a tier."""
    return {str(path.relative_to(tier)) for path in tier.rglob("*.safetensors")}


def test_a_file_under_a_fixed_name_stays_where_its_program_begins_from_it(
    fast: Path, slow: Path
) -> None:
    state(fast / "run" / "best.safetensors", 1, at_s=T)
    for step in (100, 200):
        state(fast / f"step_{step}.safetensors", step, at_s=T + 60 * step)
    assert drained(fast, slow, NEWEST) == []
    assert left(slow) == {"run/best.safetensors", "step_100.safetensors", "step_200.safetensors"}
    assert left(fast) == {"run/best.safetensors", "step_200.safetensors"}
