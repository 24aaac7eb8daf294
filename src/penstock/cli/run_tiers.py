"""The tiers of `penstock run`: staged copies, and filling while the program reads.  Knows the
options; penstock.stage does the work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.shell import (
    INTERRUPTED,
    LIMIT_PASSED,
    ProgressBar,
    ended_like_ctrl_c,
    fail,
    on_one_line,
    say,
    tell_thawed,
)

if TYPE_CHECKING:
    import subprocess

    from penstock.recording.session import Session

__all__ = [
    "ahead_bytes",
    "check_container",
    "check_options",
    "check_pairs",
    "end_filling",
    "filled",
    "map_of",
    "tuned",
]

ALL_FREE = 1 << 62  # bytes: no limit but the free memory


def ahead_bytes(is_ahead: bool, limit: int | None) -> int:
    """Return the limit of reading ahead; 0: no reading ahead."""
    return (limit or ALL_FREE) if is_ahead else 0


def tuned(path: Path | None, is_ahead: bool, staged: str | None) -> tuple[bool, str | None]:
    """Apply the knobs of a file of `penstock tune`; return whether to read ahead, and the tier.

    Options of the command line count more than the file.  The loader's knobs reach the program by
    the environment.  Raises TierError.
    """
    if path is None:
        return is_ahead, staged
    import json
    import os

    from penstock.trial.tune import load

    knobs = load(path)
    os.environ["PENSTOCK_TUNED"] = json.dumps(knobs)
    tier = knobs.get("staged")
    return is_ahead or bool(knobs.get("ahead")), staged or (str(tier) if tier else None)


def check_pairs(needed: tuple[str, Any], options: tuple[Any, ...]) -> None:
    """Refuse an option without another, needed option.  needed: the message, and the other's
    value."""
    message, other = needed
    if not other and any(options):
        raise click.UsageError(message)


def check_container(inside: str | None, tiers: tuple[str | None, ...]) -> None:
    """Refuse tiers for a program in a container."""
    if inside is not None and any(tier is not None for tier in tiers):
        raise click.UsageError("--container goes without tiers: their paths are those of this side")


def check_options(staged: str | None, verify: bool, fill: str | None, how: Any) -> None:
    """Refuse options that do not go together."""
    if verify and staged is None:
        raise click.UsageError("--verify is about copies: name their tier with --staged")
    if fill is None and how is not None:
        raise click.UsageError("--fill-from and --fill-limit need --fill TIER")
    if fill is not None and staged not in (None, fill):
        raise click.UsageError("--fill serves the copies of its tier: leave out --staged")


@contextlib.contextmanager
def filled(
    run: Session, tier: str | None, source: str | None, limit: int | None, is_quiet: bool
) -> Iterator[None]:
    """Copy files to the tier while the program runs, if there is a tier and a recording."""
    filling = None
    if tier is not None and run.folder is not None:
        filling = _filling(run.folder, tier, source, limit, run.environ)
    try:
        yield
    finally:
        if filling is not None:
            end_filling(*filling, tier or "", is_quiet)


def _filling(
    folder: Path, tier: str, source: str | None, limit: int | None, environ: dict[str, str]
) -> tuple[subprocess.Popen[bytes], Path] | None:
    """Start the copying and point the program to the copies.  After a failure print a message: the
    program runs in any case."""
    from penstock.cli.stage import quarter, start_filling
    from penstock.errors import PenstockError
    from penstock.places.registry import tier_of
    from penstock.stage.frozen import check
    from penstock.stage.manifest import TierPlace

    try:
        there = tier_of(tier)
        if source is not None and limit is None:
            limit = quarter(source, "--fill-limit")
        what, journal = source or str(folder), folder / "fill.json"
        filling = start_filling(what, there, None, limit, source is None, journal)
        tell_thawed(check(there).changed)
        environ["PENSTOCK_STAGED"] = str(TierPlace(there).map)
    except PenstockError as error:
        say(f"nothing is filled: {error}")
        return None
    return filling


def end_filling(filling: subprocess.Popen[bytes], log: Path, tier: str, is_quiet: bool) -> None:
    """End the filling: complete copies stay, the copy under way is removed.

    Prints the filling's own last words; a failure is printed even if is_quiet.
    """
    import subprocess

    filling.terminate()
    try:
        filling.wait(10)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        filling.kill()
        filling.wait()
    status, look = filling.returncode, f"penstock stage status {tier} says what is there"
    if status < 0:
        say(f"the filling of {tier} was killed; {look}")
        return
    how = {0: "is done", INTERRUPTED: "ended with the program"}.get(status, "failed")
    if is_quiet and how != "failed":
        return
    try:
        messages = log.read_text(errors="replace").partition("may start\n")[2]
    except OSError:  # the tier went away
        say(f"the filling of {tier} {how}, and {log}, where it says why, is not there; {look}")
        return
    lines = [line.removeprefix("penstock: ") for line in map(str.strip, messages.splitlines())]
    for line in filter(None, lines) if any(lines) else [look]:
        if not line.startswith("penstock run --staged"):
            say(f"the filling of {tier} {how}: {line.removeprefix('stopped: ')}")


def map_of(tier: str, is_verified: bool) -> Path:
    """Return the map of a tier's copies; for a missing tier a path without a map, so each process
    notes the loss.

    Exits if a copy is damaged.
    """
    from penstock.errors import TierGone

    try:
        return _checked_map_of(tier, is_verified)
    except TierGone as error:
        say(f"the originals are read: {error}")
        # Not the map's own name: an older map may be below an empty mount point.
        return Path("/proc/self/penstock-tier-gone")


def _checked_map_of(tier: str, is_verified: bool) -> Path:
    from penstock import stage

    if is_verified:
        from penstock.places.registry import tier_of
        from penstock.stage.held import verify

        with ended_like_ctrl_c(), ProgressBar("reading the copies") as progress:
            bad = verify(tier_of(tier), progress=progress.advance).corrupted
        if bad:
            say(f"{on_one_line(bad[0].entry.source)}: its copy: {bad[0].why}")
            n = f"{len(bad)} copies are" if len(bad) > 1 else "1 copy is"
            fail(
                f"{tier}: {n} not what was staged; nothing was run; "
                f"`penstock stage verify {tier} --evict` lists and removes them, then "
                f"`penstock stage copy RUN --to {tier}` makes them again",
                LIMIT_PASSED,
            )
    return stage.map_of(tier, tell_thawed)
