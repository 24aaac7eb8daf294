-- The finished calls that Darshan counts.  Darshan counts the calls of a process, layer and file in the order of the
-- calls' ends.  The rows are not sorted: the reader of the rows sorts in a third of the time.  kind and timer are the
-- numbers of darshan_kinds; an offset of -1 is not known; other_number is a rename's other file.  Each execution covers
-- a part of all files.
WITH counted AS (
    SELECT
        e.process,
        k.layer = 'stdio' AS is_stdio,
        e.file,
        k.kind_number AS kind,
        k.timer_number AS timer,
        e.start_ns,
        e.start_ns + e.duration_ns AS end_ns,
        coalesce(e.offset_bytes, -1) AS offset_bytes,
        e.moved_bytes,
        -1 AS other_file
    FROM events_raw AS e
    JOIN darshan_kinds AS k ON k.op_number = e.op_number
    WHERE e.errno = 0 AND e.duration_ns IS NOT NULL
        -- Darshan counts empty reads and writes (no byte moved) of POSIX, but not of stdio.
        AND (k.layer = 'posix' OR e.moved_bytes > 0 OR k.kind NOT IN ('read', 'write'))
    UNION ALL
    SELECT
        process,
        false,
        file,
        list_position($kinds, 'rename'),
        list_position($timers, 'metadata'),
        start_ns,
        end_ns,
        0,
        0,
        other_file
    FROM darshan_renames
    UNION ALL
    SELECT
        process, false, other_file, list_position($kinds, 'renamed'), 0, start_ns, end_ns, 0, 0, file
    FROM darshan_renames
)
SELECT
    r.rank,
    e.process,
    e.is_stdio,
    n.number,
    CAST(e.kind AS UTINYINT) AS kind,
    CAST(e.timer AS UTINYINT) AS timer,
    e.start_ns,
    e.end_ns,
    e.offset_bytes,
    e.moved_bytes,
    coalesce(m.number, -1) AS other_number
FROM counted AS e
JOIN darshan_names AS n ON n.file = e.file
JOIN darshan_ranks AS r ON r.process = e.process
LEFT JOIN darshan_names AS m ON m.file = e.other_file
WHERE n.number % $parts = $part
