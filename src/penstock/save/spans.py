"""Read from a recorded run which files one save wrote, and keep the sets with the fast tier.

A save is a finished checkpoint span: of an adapter, or `penstock.span("checkpoint")`.  The module
knows runs and names.  How the sets decide, penstock.save.units knows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.save.commit import STATE
from penstock.stores import LocalStore, Store

__all__ = ["Saves", "by_folder", "keep_saves", "saves_of", "saves_of_run"]

Saves = Sequence[frozenset[str]]  # names of files, relative to the tier; the latest save first

SAVES = f"{STATE}/saves.json"
MOST_SAVES, MOST_SAVES_BYTES = 1000, 16 << 20

# Files that were also written outside of the saves, as a log, belong to no save.  A renamed file
# has the new name.
_QUERY = """
WITH saves AS (
    SELECT process, start_ns, start_ns + duration_ns AS end_ns,
        row_number() OVER (ORDER BY start_ns, process) AS save
    FROM spans
    WHERE kind = 'span' AND name = 'checkpoint' AND duration_ns IS NOT NULL
        AND coalesce(b, 0) <> 1
),
written AS (
    SELECT process, file, start_ns
    FROM events_raw
    WHERE file IS NOT NULL AND moved_bytes > 0
        AND op_number IN (SELECT op_number FROM ops WHERE op_group = 'write' AND is_access)
),
inside AS (
    SELECT s.save, s.start_ns, s.end_ns, w.file, count(*) AS calls
    FROM saves AS s
    JOIN written AS w
        ON w.process = s.process AND w.start_ns >= s.start_ns AND w.start_ns < s.end_ns
    GROUP BY s.save, s.start_ns, s.end_ns, w.file
),
totals AS (SELECT file, count(*) AS calls FROM written GROUP BY file),
sums AS (SELECT file, sum(calls) AS calls FROM inside GROUP BY file),
renamed AS (
    SELECT DISTINCT s.save, e.file, e.other_file
    FROM saves AS s
    JOIN events_raw AS e
        ON e.process = s.process AND e.start_ns >= s.start_ns AND e.start_ns < s.end_ns
    WHERE e.errno = 0
        AND e.op_number IN (SELECT op_number FROM ops WHERE op = 'rename')
)
SELECT i.start_ns, i.end_ns, coalesce(f.resolved_path, f.path)
FROM inside AS i
JOIN totals AS t ON t.file = i.file
JOIN sums AS a ON a.file = i.file AND a.calls >= t.calls
LEFT JOIN renamed AS r ON r.save = i.save AND r.file = i.file
JOIN files_raw AS f ON f.file = coalesce(r.other_file, i.file)
ORDER BY i.start_ns
"""


def saves_of_run(run: str | os.PathLike[str], store: Store) -> Saves:
    """Return the files in a local tier that each save of a recorded run wrote.  Saves of several
    processes that overlap in time are one save.  Raises RunError, LogError, QueryError."""
    from penstock.run import open_run

    if not isinstance(store, LocalStore):
        return ()
    with open_run(run) as opened:
        rows = opened.sql(_QUERY).fetchall()
    root = f"{os.path.realpath(store.folder)}/"
    saves, last_ns = list[set[str]](), -1
    for start_ns, end_ns, path in rows:
        if start_ns >= last_ns:
            saves.append(set())
        last_ns = max(last_ns, end_ns)
        if path is not None and str(path).startswith(root):
            saves[-1].add(str(path)[len(root) :])
    return _several(reversed(saves))


def _several(saves: Iterable[Iterable[str]]) -> Saves:
    """Return each set of several files once."""
    found = dict.fromkeys(frozenset(save) for save in saves)
    return tuple(save for save in found if len(save) > 1)[:MOST_SAVES]


def saves_of(store: Store) -> Saves:
    """Return the sets kept with a tier.  Raises TierError."""
    if not isinstance(store, LocalStore) or store.stat(SAVES) is None:
        return ()
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        rows = json.loads(store.read(SAVES, 0, MOST_SAVES_BYTES))["saves"]
        return _several([str(name) for name in row] for row in rows)
    return ()


def keep_saves(store: LocalStore, saves: Saves) -> None:
    """Keep sets with a tier, before those that are kept already.  Raises TierError."""
    kept = saves_of(store)
    wanted = _several((*saves, *kept))
    if wanted != kept:
        rows = [sorted(save) for save in wanted]
        store.put(SAVES, json.dumps({"version": 1, "saves": rows}).encode())


def by_folder(saves: Saves) -> dict[str, list[frozenset[str]]]:
    """Return the sets within each folder, of names without the folder."""
    found = dict[str, list[frozenset[str]]]()
    for save in saves:
        folders = dict[str, set[str]]()
        for name in save:
            folder, _, base = name.rpartition("/")
            folders.setdefault(folder, set()).add(base)
        for folder, bases in folders.items():
            if len(bases) > 1:
                found.setdefault(folder, []).append(frozenset(bases))
    return found
