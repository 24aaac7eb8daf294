-- file_sums: sums of the calls on a file, by file and layer, for file_totals.
-- A copy inside the kernel (sendfile, copy_file_range, splice) reads a first file and writes a second file.
-- Copies past the trace budget are only summed: the second file is not known.
WITH kinds AS (
    SELECT
        op_number,
        layer,
        op IN ('open', 'fopen', 'freopen') AS opens,
        is_access AND op_group = 'read' AS gets,
        is_access AND op_group = 'write' AS puts
    FROM ops
    WHERE layer IN ('posix', 'stdio')
), copied AS (
    SELECT e.other_file AS file, sum(e.moved_bytes) AS bytes
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE o.op IN ('sendfile', 'copy_range', 'splice') AND e.errno = 0 AND e.other_file IS NOT NULL
    GROUP BY e.other_file
)
SELECT
    c.file,
    k.layer,
    sum(c.calls) AS calls,
    sum(c.calls) FILTER (WHERE k.opens) AS opens,
    sum(c.moved_bytes) FILTER (WHERE k.gets) AS read_bytes,
    coalesce(sum(c.moved_bytes) FILTER (WHERE k.puts), 0)
        + CASE WHEN k.layer = 'posix' THEN coalesce(any_value(w.bytes), 0) ELSE 0 END
        AS written_bytes,
    sum(c.duration_ns) AS ns
FROM calls AS c
JOIN kinds AS k ON k.op_number = c.op_number
LEFT JOIN copied AS w ON w.file = c.file
GROUP BY c.file, k.layer
