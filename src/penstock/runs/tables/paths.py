"""The files of a run, and the role of a file in the job: output, library, data."""

from collections.abc import Sequence

import duckdb

from penstock.places.classes import PathRule
from penstock.runs.schema import EXAMINING_OPS
from penstock.runs.tables.stored import INT64_MAX, quoted

__all__ = [
    "DEFAULT_CLASS",
    "FAULTED",
    "FAULTED_TYPES",
    "FILES_SELECT",
    "INTERN",
    "OUTPUTS",
    "PATHS_OF_FILES",
    "STREAM",
    "class_sql",
    "find_beside_library",
    "find_renamed_outputs",
]


def class_sql(rules: Sequence[PathRule], otherwise: str) -> str:
    cases = [
        f"WHEN regexp_matches(path, {quoted(rule.pattern)}) THEN {quoted(rule.path_class)}"
        for rule in rules
    ]
    return f"CASE {' '.join(cases)} ELSE {otherwise} END" if cases else otherwise


# Mapped files in files of page faults: the number of the page-fault file, and the number of the
# mapped file in the page-fault file.
FAULTED_TYPES = {"at": "INTEGER", "id": "UINTEGER", "path": "VARCHAR"}
FAULTED = """
    INSERT INTO texts (process, id, path, tier)
    SELECT -1 - f.at, f.id, coalesce(t.path, f.path), coalesce(t.tier, 0)
    FROM faulted f LEFT JOIN (
        SELECT coalesce(w.resolved, w.path) AS found, min(w.path) AS path, max(w.tier) AS tier
        FROM (
            SELECT process, id, min(path) AS path, max(resolved) AS resolved, max(tier) AS tier
            FROM texts
            WHERE (process, id) IN (
                SELECT (process, id) FROM texts
                WHERE path IN (SELECT path FROM faulted) OR resolved IN (SELECT path FROM faulted))
            GROUP BY process, id) w
        GROUP BY 1) t ON t.found = f.path;
"""

# A path has one number in the run for all processes, and another number for the staged copy of the
# path.  The facts are from the first open, but the size is the largest seen by any process.
INTERN = """
    CREATE TABLE known AS
    SELECT process, id, coalesce(min(path), min(resolved)) AS path, max(kind) AS kind,
        CASE WHEN max(kind) IS NOT NULL THEN coalesce(max(resolved), min(path)) END AS resolved,
        max(device) AS device, max(inode) AS inode, max(size) AS size, max(tier) AS tier
    FROM texts GROUP BY process, id
    HAVING coalesce(min(path), min(resolved)) IS NOT NULL;
    CREATE TABLE paths AS
    SELECT (row_number() OVER (ORDER BY path, tier) - 1)::INTEGER AS file, path, first.*, size,
        tier,
        CASE tier
            WHEN 0 THEN NULL
            WHEN 1 THEN coalesce(
                (SELECT min("value") FROM notes WHERE "key" = 'tier'), 'not known')
            ELSE coalesce(
                (SELECT min("value") FROM notes WHERE "key" = 'burst tier'), 'not known')
        END AS served_from
    FROM (
        SELECT path, tier, coalesce(
            arg_min({resolved: resolved, kind: kind, device: device, inode: inode},
                (process, id)) FILTER (WHERE kind IS NOT NULL),
            {resolved: NULL, kind: 'unknown', device: NULL, inode: NULL}) AS first,
            max(size) FILTER (WHERE kind IS NOT NULL) AS size
        FROM known GROUP BY path, tier);
    CREATE TABLE ids AS
    SELECT process, id, file FROM known JOIN paths USING (path, tier) ORDER BY process, id;
"""

# The paths of files named by another format.
PATHS_OF_FILES = """
    CREATE TABLE paths AS
    SELECT file, path, resolved_path AS resolved, coalesce(kind, 'unknown') AS kind, device, inode,
        size_bytes AS size, served_from
    FROM files_given
"""

DEFAULT_CLASS = (
    "CASE WHEN is_output THEN 'output' WHEN is_beside_library THEN 'library' ELSE 'data' END"
)
# The least size of a file: the end of a write, a read or a truncation.
_ENDS = f"""
    SELECT file, max(end_bytes) AS end_bytes
    FROM (
        SELECT e.file, e.offset_bytes + CASE WHEN o.op = 'truncate' THEN 0 ELSE e.moved_bytes END
            AS end_bytes
        FROM events_raw e JOIN ops o USING (op_number)
        WHERE e.errno = 0 AND e.duration_ns IS NOT NULL AND e.offset_bytes < {INT64_MAX >> 1}
            AND (o.op = 'truncate' OR o.is_access AND e.moved_bytes > 0)
        UNION ALL
        SELECT f.file, f.max_end_bytes FROM folded f JOIN ops o USING (op_number)
        WHERE o.is_access AND f.moved_bytes > 0)
    GROUP BY file"""
FILES_SELECT = f"""
    WITH known AS (
        SELECT p.*, o.file IS NOT NULL AS is_output, l.file IS NOT NULL AS is_beside_library,
            CASE WHEN kind IN ('regular', 'unknown') THEN e.end_bytes END AS end_bytes
        FROM paths p LEFT JOIN outputs o USING (file) LEFT JOIN beside_library l USING (file)
            LEFT JOIN ({_ENDS}) e USING (file))
    SELECT file, path, resolved AS resolved_path,
        CASE WHEN kind IN ('pipe', 'socket', 'terminal', 'device') THEN 'system'
            ELSE {{path_class}} END AS path_class,
        kind, device::BIGINT AS device, inode::BIGINT AS inode,
        served_from,
        greatest(CASE WHEN size >= 0 THEN size::BIGINT END, end_bytes::BIGINT) AS size_bytes
    FROM known ORDER BY file"""

# The job's output: files with bytes written, cut or reserved, new directories, targets of copies,
# files with a synced mapping, and new names or links of any of the above.
OUTPUTS = """
    CREATE TABLE renames AS
    SELECT DISTINCT e.file, e.other_file
    FROM events_raw e JOIN ops o USING (op_number)
    WHERE o.op IN ('rename', 'link') AND e.errno = 0 AND e.file <> e.other_file;
    CREATE TABLE synced AS
    WITH mappings AS (
        SELECT o.op, e.process, e.file, e.start_ns, e."result" AS address, e.asked_bytes
        FROM events_raw e JOIN ops o USING (op_number)
        WHERE o.op IN ('mmap', 'msync') AND e.errno = 0 AND e."result" IS NOT NULL)
    SELECT DISTINCT file
    FROM (
        SELECT arg_max(m.file, m.start_ns) AS file
        FROM mappings s JOIN mappings m ON m.process = s.process AND m.start_ns <= s.start_ns
            AND s.address >= m.address AND s.address - m.address < m.asked_bytes
        WHERE s.op = 'msync' AND m.op = 'mmap'
        GROUP BY s.process, s.start_ns, s.address)
    WHERE file IS NOT NULL;
    CREATE TABLE outputs AS
    WITH RECURSIVE output(file) AS (
        SELECT * FROM (
            SELECT e.file
            FROM events_raw e JOIN ops o USING (op_number)
            WHERE e.errno = 0 AND e.file IS NOT NULL
                AND (o.op IN ('truncate', 'fallocate', 'mkdir')
                    OR o.op_group = 'write' AND o.is_access AND e.moved_bytes > 0)
            UNION
            SELECT e.other_file
            FROM events_raw e JOIN ops o USING (op_number)
            WHERE e.errno = 0 AND e.other_file IS NOT NULL AND e.moved_bytes > 0
            UNION
            SELECT file FROM synced
            UNION
            SELECT f.file
            FROM folded f JOIN ops o USING (op_number)
            WHERE f.file IS NOT NULL AND f.calls > coalesce(f.errors, 0)
                AND (o.op IN ('truncate', 'fallocate', 'mkdir')
                    OR o.op_group = 'write' AND o.is_access AND f.moved_bytes > 0))
        UNION
        SELECT r.other_file FROM output JOIN renames r USING (file))
    SELECT file FROM output;
"""

# The file of the program's standard output or error is the job's log, written to or not.
STREAM = """
    INSERT INTO outputs
    SELECT file FROM paths
    WHERE (path = ? OR resolved = ?) AND file NOT IN (SELECT file FROM outputs)
"""

# Files below a renamed directory have new paths without a call that names the new path.
_RENAMED_BELOW = """
    INSERT INTO outputs
    SELECT DISTINCT new.file
    FROM renames r JOIN paths f ON f.file = r.file JOIN paths t ON t.file = r.other_file
        JOIN paths new ON starts_with(new.path, t.path || '/')
        JOIN paths old ON old.path = f.path || substr(new.path, length(t.path) + 1)
        JOIN outputs o ON o.file = old.file
    WHERE (f.kind = 'directory' OR t.kind = 'directory')
        AND new.file NOT IN (SELECT file FROM outputs)
"""

# schema.BESIDE_LIBRARY explains the rule.  A job may examine a million files, so no pairs are
# compared.  held: the direct content of a folder, and sub-folders by the sub-folders' files; own_:
# without sub-folders.
_BESIDE_LIBRARY = f"""
    CREATE TEMP TABLE ruled AS
    SELECT p.file, p.kind, CASE WHEN p.path = '/' THEN '' ELSE p.path END AS path,
        regexp_replace(p.path, '/[^/]*$', '') AS folder, regexp_extract(p.path, '[^/]*$') AS name,
        {{path_class}} AS path_class
    FROM paths p LEFT JOIN outputs o USING (file) WHERE o.file IS NULL;
    CREATE TEMP TABLE examined AS
    SELECT c.file, bool_or(c.is_there) AS is_there, bool_or(c.is_run) AS is_run
    FROM (
        SELECT e.file, o.op, o.layer = 'process' AS is_run, e.errno = 0 AS is_there
        FROM events_raw e JOIN ops o USING (op_number)
        UNION ALL
        SELECT f.file, o.op, o.layer = 'process', f.calls > coalesce(f.errors, 0)
        FROM folded f JOIN ops o USING (op_number)
        UNION ALL
        SELECT e.other_file, 'other', false, true FROM events_raw e WHERE e.other_file IS NOT NULL
    ) c JOIN ruled r USING (file)
    WHERE r.kind = 'unknown' AND r.path_class IS NULL
    GROUP BY c.file
    HAVING bool_and(c.is_run OR c.op IN ({", ".join(map(quoted, EXAMINING_OPS))}));
    CREATE TEMP TABLE held AS
    WITH own AS (
        SELECT folder, count(*) FILTER (path_class = 'library') AS libraries,
            count(*) FILTER (path_class IS NULL) AS others
        FROM ruled WHERE kind = 'regular' GROUP BY folder)
    SELECT folder, sum(libraries) AS libraries, sum(others) AS others,
        sum(libraries) FILTER (is_own) AS own_libraries, sum(others) FILTER (is_own) AS own_others
    FROM (
        SELECT *, true AS is_own FROM own
        UNION ALL
        SELECT regexp_replace(folder, '/[^/]*$', ''), (libraries > 0 AND libraries >= others)::INT,
            (others > libraries)::INT, false
        FROM own WHERE folder <> '')
    GROUP BY folder;
    CREATE TEMP TABLE above AS
    WITH RECURSIVE up(folder) AS (
        SELECT DISTINCT folder FROM ruled LEFT JOIN examined x USING (file)
        WHERE path_class = 'library' AND kind <> 'unknown' OR x.is_run AND x.is_there
        UNION
        SELECT regexp_replace(folder, '/[^/]*$', '') FROM up WHERE folder <> '')
    SELECT folder FROM up;
    CREATE TABLE beside_library AS
    SELECT r.file
    FROM ruled r LEFT JOIN examined x USING (file)
        LEFT JOIN held h ON h.folder = r.path LEFT JOIN above a ON a.folder = r.path
    WHERE r.path_class IS NULL AND (
        x.is_run
        OR NOT x.is_there AND r.name IN (
            SELECT name FROM ruled
            WHERE path_class = 'library' AND regexp_matches(folder, '/s?bin$'))
        OR x.is_there AND a.folder IS NOT NULL AND coalesce(h.own_libraries >= h.own_others, true)
        OR r.kind = 'directory' AND h.libraries > 0 AND h.libraries >= h.others);
"""


def find_renamed_outputs(connection: duckdb.DuckDBPyConnection) -> None:
    # A second round finds files renamed twice; a third round never found more.
    connection.execute(_RENAMED_BELOW)
    connection.execute(_RENAMED_BELOW)


def find_beside_library(connection: duckdb.DuckDBPyConnection, rules: Sequence[PathRule]) -> None:
    connection.execute(_BESIDE_LIBRARY.format(path_class=class_sql(rules, "NULL")))
