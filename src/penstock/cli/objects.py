"""Copy the objects of a plan to a tier, and report the requests answered from copies.  Knows the
options; penstock.stage and penstock.feed do the work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.shell import on_one_line, say, say_some

if TYPE_CHECKING:
    from penstock.places.registry import Tier
    from penstock.recording.session import Session
    from penstock.stage.copy import Copied

__all__ = ["copy_objects", "served_objects"]


def copy_objects(path: Path, tier: Tier, is_frozen: bool, **how: Any) -> Copied:
    """Copy the objects of a plan to a tier, and list the copies for staged runs.

    how: further arguments of penstock.stage.copy.copy.  Raises TierError.
    """
    from dataclasses import replace

    from penstock.feed.object_copies import ServedObjects
    from penstock.stage import objects
    from penstock.stage.copy import copy, summed

    servers: dict[tuple[bool, str, bool], list[str]] = {}
    for row in objects.load(path):
        server = row.is_tls, row.endpoint, row.bucket is not None
        servers.setdefault(server, []).append(row.path)
    parts = []
    for (is_tls, endpoint, is_s3), paths in servers.items():
        store = ServedObjects(is_tls, endpoint, paths, is_s3)
        store.look()
        if not store.facts:
            parts.append(_nothing(store.skipped))
            continue
        try:
            made = copy(tier, (), store=store, **how)
        finally:
            _list_copies(tier, store, is_frozen, is_s3)
        # Programs ask for the objects as before, and need no path of a copy.
        notes = tuple(note for note in made.notes if "give the program" not in note)
        parts.append(replace(made, skipped=_added(made.skipped, store.skipped), notes=notes))
    return summed(parts or [_nothing({})])


def _nothing(skipped: dict[str, int]) -> Copied:
    from penstock.stage.copy import Copied

    return Copied(0, 0, 0, 0, skipped, (), 0.0)


def _added(some: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {why: some.get(why, 0) + more.get(why, 0) for why in {**some, **more}}


def _list_copies(tier: Tier, store: Any, is_frozen: bool, is_signed: bool) -> None:
    from penstock.stage.catalog import ObjectCopy, tell

    tell(
        tier,
        [
            ObjectCopy(
                f"{store.url}/{name}",
                f"url/{store.url.replace('://', '/', 1)}/{name}",
                *(facts.size_bytes, 0, facts.etag, facts.last_modified, facts.headers),
                *(is_frozen, is_signed),
            )
            for name, facts in store.facts.items()
        ],
    )


@contextlib.contextmanager
def served_objects(run: Session, tier: str | None, is_quiet: bool) -> Iterator[None]:
    """Serve objects from the copies on a tier, if any, and report the number of requests."""
    listed = [] if tier is None or run.folder is None else _begin(tier, run.folder, run.environ)
    try:
        yield
    finally:
        if listed and run.folder is not None:
            _tell_served(run, run.folder, listed, is_quiet)


def _begin(tier: str, folder: Path, environ: dict[str, str]) -> list[Any]:
    """Write the list of the run.  After a failure print a message: the program runs in any case."""
    from penstock.errors import PenstockError, TierGone
    from penstock.places.registry import tier_of
    from penstock.stage import catalog

    try:
        listed = catalog.present(tier_of(tier))
        if listed:
            catalog.begin(folder, listed, _asked([item for item in listed if item.is_frozen]))
    except TierGone:  # said already
        return []
    except PenstockError as error:
        say(f"objects are read from their servers: {error}")
        return []
    if listed:
        environ["PENSTOCK_OBJECTS"] = str(folder)
    return listed


def _asked(frozen: list[Any]) -> dict[str, tuple[int, str, str]]:
    """Ask the servers of frozen objects; an object without an answer is asked by the program."""
    from penstock.feed.object_copies import ServedObjects

    servers: dict[tuple[str, bool], list[str]] = {}
    for item in frozen:
        scheme, _, rest = item.address.partition("://")
        endpoint, _, path = rest.partition("/")
        servers.setdefault((f"{scheme}://{endpoint}", item.is_signed), []).append(f"/{path}")
    facts_of = {}
    for (server, is_signed), paths in servers.items():
        scheme, _, endpoint = server.partition("://")
        store = ServedObjects(scheme == "https", endpoint, paths, is_signed)
        store.look()
        for name, facts in store.facts.items():
            facts_of[f"{server}/{name}"] = facts.size_bytes, facts.etag, facts.last_modified
    return facts_of


def _tell_served(run: Session, folder: Path, listed: list[Any], is_quiet: bool) -> None:
    from penstock.stage.catalog import changed_in, counted
    from penstock.words import count, show

    counts = counted(folder)
    different = changed_in(folder, listed)
    if run.facts is not None:
        run.facts["objects_served"] = {**counts, "changed": len(different)}
    if different:
        names = [on_one_line(item.address) for item in different]
        head = "changed or written since the copy, read from its server"
        say_some([f"{name}: {head}" for name in names], "")
    if not is_quiet:
        say(
            f"{count(counts['requests'], 'request')} for objects answered from copies, "
            f"{show(counts['bytes'], 'B')}; {counts['asked']:,} asked for the version of an object"
        )
