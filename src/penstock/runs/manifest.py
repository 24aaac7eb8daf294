"""The manifest of a run folder: the sources of the tables.  Knows names, sizes and headers of the
files in the folder; makes no table.

Equal manifests mean equal tables.  A reader need not make the tables again if the manifest beside
the tables equals the folder's manifest.
"""

import os
import platform
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import LogError, RunError
from penstock.log.faults import SUFFIX as FAULTS_SUFFIX
from penstock.log.faults import check_header
from penstock.log.header import Header, is_alive, looks_like_log, read_header
from penstock.log.layout import OPS
from penstock.log.texts import is_log_name
from penstock.places.classes import PATH_RULES
from penstock.recording import container
from penstock.recording.container import Inside
from penstock.recording.system import SUFFIX as SYSTEM_SUFFIX
from penstock.recording.system import check_head
from penstock.runs.schema import BESIDE_LIBRARY, EXAMINING_OPS, TABLES
from penstock.runs.tables import STORED, Launch, Surroundings, utf8
from penstock.safe import bounded

__all__ = ["made_by", "manifest_of", "surroundings_of"]

# Version of the layout of the files under RUN/tables/; the manifest also has the tables' columns.
TABLES_FORMAT = 1

Stamp = list[int]  # size and time of change; for a log also a checksum of the header


def manifest_of(folder: Path, known_mounts: Any = None) -> dict[str, Any]:
    """Return the manifest of a run folder: equal manifests mean equal tables.

    known_mounts: the container's mounts in an earlier manifest, for a host without view of the
    container.  Raises RunError: no run folder, or an unreadable log; LogError: a log of a newer
    format.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as error:
        raise RunError(f"{folder}: not a run folder: {error.strerror}") from error
    held = _RunFolder(folder)
    held.read_facts([name for name in names if FACTS_NAME.fullmatch(name)])
    held.stamp_faults([name for name in names if name.endswith(FAULTS_SUFFIX)])
    held.stamp_system([name for name in names if name.endswith(SYSTEM_SUFFIX)])
    held.stamp_logs([name for name in names if is_log_name(name)])
    if not held.logs:
        first = next((f" ({why})" for why in held.skipped.values()), "")
        cure = "record one with: penstock run COMMAND"
        raise RunError(f"{folder}: no log of penstock in it{first}; {cure}")
    return {
        **made_by(),
        "logs": held.logs,
        "running": held.running,
        "elsewhere": held.elsewhere,
        "skipped": held.skipped,
        "launched": held.launched,
        "faults": held.faults,
        "system": held.system,
        "mounts": _outside(held.inside, held.launched, known_mounts),
    }


class _RunFolder:
    """The files of a run folder, sorted by kind, each with a stamp.

    launched: the facts of each `run.json`.  running: logs of processes that still record on this
    host.  elsewhere: logs of processes that may still record, on another host.  skipped: files
    outside of the run, with the reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.inside = container.read_inside(folder)
        self.logs: dict[str, Stamp] = {}
        self.faults: dict[str, Stamp] = {}
        self.system: dict[str, Stamp] = {}
        self.running: list[str] = []
        self.elsewhere: list[str] = []
        self.skipped: dict[str, str] = {}
        self.launched: list[dict[str, Any]] = []

    def read_facts(self, names: Sequence[str]) -> None:
        """Read the facts of each launch by `penstock run`."""
        for name in names:
            facts, damage = _launched(self._folder / name)
            self.launched.append(facts)
            if damage:
                self.skipped[name] = damage
        actual = container.sum_of(self._folder)
        stated = {facts.get("container_sum", actual) for facts in self.launched}
        if not stated <= {"", actual}:
            path = self._folder / container.NAME
            self.skipped[path.name] = f"{path}: is damaged: it differs from its checksum"

    def stamp_faults(self, names: Sequence[str]) -> None:
        for name in names:
            self._stamp_beside(name, self.faults, check_header)

    def stamp_system(self, names: Sequence[str]) -> None:
        for name in names:
            self._stamp_beside(name, self.system, check_head)

    def _stamp_beside(
        self, name: str, stamps: dict[str, Stamp], check: Callable[[Path], object]
    ) -> None:
        try:
            status = (self._folder / name).stat()
            check(self._folder / name)
        except (OSError, LogError) as error:
            self.skipped[name] = str(error)
        else:
            stamps[name] = [status.st_size, status.st_mtime_ns]

    def stamp_logs(self, names: Sequence[str]) -> None:
        """Stamp each log, and note growing logs.  Raises RunError, LogError as manifest_of."""
        for name in names:
            path = self._folder / name
            try:
                status = path.stat()
                with bounded.opened(path) as file:
                    page = file.read(4096)
                header = read_header(path)
            except OSError as error:
                raise RunError(f"{path}: cannot be read: {error.strerror}") from error
            except LogError as error:
                if looks_like_log(page):
                    raise
                self.skipped[name] = str(error)
                continue
            # A mapped page changes the file's time late, so the stamp includes the header's page.
            self.logs[name] = [status.st_size, status.st_mtime_ns, zlib.crc32(page)]
            if header.state == "running":
                self._note_running(name, header)

    def _note_running(self, name: str, header: Header) -> None:
        """Note a log with a header without an end.

        The process can be looked up on this host.  The pid means another process on another host,
        and in a container with a pid namespace.
        """
        is_apart = self.inside is not None and not self.inside.has_our_processes
        if is_apart and self._has_every_end():
            return
        if is_apart or header.host != platform.node():
            self.elsewhere.append(name)
        elif is_alive(header):
            self.running.append(name)

    def _has_every_end(self) -> bool:
        """Return True if every launcher noted the end of the launched program."""
        return bool(self.launched) and all("end_monotonic_ns" in facts for facts in self.launched)


def surroundings_of(folder: Path, manifest: Mapping[str, Any]) -> Surroundings:
    """Return the sources of a run's tables besides the logs."""
    return Surroundings(
        manifest["running"],
        manifest["elsewhere"],
        manifest["skipped"],
        _launches(manifest["launched"]),
        _noted(manifest["launched"]),
        [folder / name for name in manifest["faults"]],
        [folder / name for name in manifest["system"]],
        manifest["mounts"],
        _measured_clocks(manifest["launched"]),
    )


def _outside(
    inside: Inside | None, launched: Sequence[Mapping[str, Any]], own_mounts: Any
) -> dict[str, Any]:
    """Return the outside folders of a container's mounts.

    The source is the note of `penstock run --container`, else the mount table of this host, else,
    on another host, an earlier manifest.
    """
    mounts = [launch["mounts"] for launch in launched if "mounts" in launch]
    if mounts:
        given = mounts[0]
    elif inside is None:
        return {}
    else:
        given = container.host_mounts(inside, container.own_mounts()) or own_mounts
    pairs = given.items() if isinstance(given, dict) else ()
    return {path: place for path, place in pairs if isinstance(place, str | None)}


def made_by() -> dict[str, Any]:
    """Return the version of the definitions behind the tables, besides the logs.

    Another version may mean other numbers.
    """
    definitions = repr((TABLES, STORED, PATH_RULES, BESIDE_LIBRARY, EXAMINING_OPS, OPS)).encode()
    return {"format": TABLES_FORMAT, "definitions": zlib.crc32(definitions)}


# Facts of `penstock run`: a file, or a file per rank; a gathered folder has the files of all nodes.
FACTS_NAME = re.compile(r"run(-[A-Za-z0-9.-]+)?\.json")
MOST_FACTS_BYTES = 1 << 20
# The facts used for tables, {key: type}; the other facts are for people.
_LAUNCHED: dict[str, type] = {
    "host": str,
    "launcher_pid": int,
    "end_monotonic_ns": int,
    "status": int,
    "rank": int,
    "still": list,
    "streams": list,
    "machine": list,
    "page_faults": str,
    "residency": dict,
    "ahead": dict,
    "mounts": dict,
    "clock": dict,
    "container_sum": str,
}


def _launched(path: Path) -> tuple[dict[str, Any], str]:
    """Return the facts of run.json used for tables, and the damage, or ""."""
    try:
        facts = bounded.json_of(path, MOST_FACTS_BYTES)
    except (OSError, ValueError) as error:
        with suppress(OSError):
            if path.is_file() and not path.stat().st_size:  # claimed by a beginning run
                return {}, ""
        return {}, f"{path}: cannot be read: {error}"
    if not isinstance(facts, dict):
        return {}, f"{path}: not what `penstock run` writes"
    facts_read = {
        key: facts[key] for key, kind in _LAUNCHED.items() if type(facts.get(key)) is kind
    }
    return facts_read, ""


def _launches(launches: Sequence[Mapping[str, Any]]) -> list[Launch]:
    return [
        Launch(
            facts["host"],
            facts["launcher_pid"],
            facts.get("end_monotonic_ns"),
            facts.get("status"),
            tuple(path for path in facts.get("streams", ()) if isinstance(path, str)),
        )
        for facts in launches
        if {"host", "launcher_pid"} <= facts.keys()
    ]


def _measured_clocks(launches: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, int, int]]:
    """Return by boot the most accurate clock offset from messages."""
    best: dict[str, tuple[str, int, int]] = {}
    for facts in launches:
        said = facts.get("clock", {})
        own, other = said.get("boot_id"), said.get("other_boot_id")
        numbers = [said.get(name) for name in ("offset_ns", "error_ns")]
        if not isinstance(own, str) or not isinstance(other, str) or own == other:
            continue
        if not all(type(n) is int and abs(n) < 1 << 62 for n in numbers) or numbers[1] < 0:
            continue
        if own not in best or numbers[1] < best[own][2]:
            best[own] = other, numbers[0], numbers[1]
    return best


def _noted(launches: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the host facts of `penstock run` as notes of the run, each once."""
    pairs: dict[tuple[Any, ...], None] = {}
    for facts in launches:
        pairs |= {tuple(pair): None for pair in facts.get("machine", ()) if _is_words(pair)}
        if "page_faults" in facts:
            pairs["page faults", facts["page_faults"]] = None
        pairs |= dict.fromkeys(_read_ahead(facts.get("ahead", {})))
        for number, words in enumerate(facts.get("still", ())[:20]):
            pairs["still", f"{number:02} {words}"[:400]] = None
        if "status" in facts:  # queries/endings.sql
            ending = [facts.get(key, "") for key in ("status", "rank", "launcher_pid", "host")]
            pairs["ended", "\t".join(map(str, ending))[:200]] = None
        for moment in ("before", "after"):
            # queries/residency.sql parses the words, and skips words other than numbers.
            words = facts.get("residency", {}).get(moment)
            if isinstance(words, list):
                pairs[f"resident {moment}", "\t".join(map(str, words[:5]))[:200]] = None
    return [(utf8(pair[0]), utf8(pair[1])) for pair in pairs]


def _read_ahead(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the notes of `penstock run --ahead`; queries/ahead.sql parses the notes."""
    notes = []
    if isinstance(facts.get("state"), str):
        notes.append(("ahead", facts["state"][:200]))
    files = facts.get("files")
    for words in files[:200] if isinstance(files, list) else ():
        if isinstance(words, list) and len(words) == 7:
            notes.append(("ahead file", "\t".join(map(str, words))[:5000]))
    return notes


def _is_words(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
