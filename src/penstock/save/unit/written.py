"""Read the files of each save from a recorded run.

A save is a finished checkpoint span: of an adapter, or `penstock.span("checkpoint")`.
"""

from __future__ import annotations

import os

from penstock.places.stores import LocalStore, Store
from penstock.runs.run import open_run
from penstock.save.unit.spans import Saves, several

__all__ = ["saves_of_run"]

ON_A_BURST_TIER = "/burst/data/"

# A file with writes outside of the saves, as a log, belongs to no save.  A write within an unended
# save is no write outside, but the unended save is not listed.  A renamed file has the new name.
_QUERY = """
WITH saves AS (
    SELECT process, start_ns, duration_ns IS NOT NULL AS is_ended,
        CASE WHEN duration_ns IS NULL THEN 9223372036854775807 ELSE start_ns + duration_ns END
            AS end_ns,
        row_number() OVER (ORDER BY start_ns, process) AS save
    FROM spans
    WHERE kind = 'span' AND name = 'checkpoint' AND coalesce(b, 0) <> 1
),
written AS (
    SELECT process, file, start_ns
    FROM events_raw
    WHERE file IS NOT NULL AND moved_bytes > 0
        AND op_number IN (SELECT op_number FROM ops WHERE op_group = 'write' AND is_access)
),
inside AS (
    SELECT s.save, s.start_ns, s.end_ns, s.is_ended, w.file, count(*) AS calls
    FROM saves AS s
    JOIN written AS w
        ON w.process = s.process AND w.start_ns >= s.start_ns AND w.start_ns < s.end_ns
    GROUP BY s.save, s.start_ns, s.end_ns, s.is_ended, w.file
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
SELECT i.start_ns, i.end_ns, f.path, f.resolved_path
FROM inside AS i
JOIN totals AS t ON t.file = i.file
JOIN sums AS a ON a.file = i.file AND a.calls >= t.calls
LEFT JOIN renamed AS r ON r.save = i.save AND r.file = i.file
JOIN files_raw AS f ON f.file = coalesce(r.other_file, i.file)
WHERE i.is_ended
ORDER BY i.start_ns
"""


def saves_of_run(run: str | os.PathLike[str], store: Store) -> Saves:
    """Return the files in a local tier that each save of a recorded run wrote.  Overlapping saves
    of several processes count as a single save.  Raises RunError, LogError, QueryError."""
    if not isinstance(store, LocalStore):
        return ()
    with open_run(run) as opened:
        rows = opened.sql(_QUERY).fetchall()
    root = f"{os.path.realpath(store.folder).rstrip('/')}/"
    saves, last_ns = list[set[str]](), -1
    for start_ns, end_ns, named, resolved in rows:
        # On the fast tier of a burst buffer a file has another name.
        path = named if resolved is None or ON_A_BURST_TIER in str(resolved) else resolved
        if start_ns >= last_ns:
            saves.append(set())
        last_ns = max(last_ns, end_ns)
        if path is not None and str(path).startswith(root):
            saves[-1].add(str(path)[len(root) :])
    return several(reversed(saves))
