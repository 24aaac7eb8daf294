-- file_totals: a row per file and layer; pipes, sockets and terminals have no rows.
--   opens       calls that opened the file (open, fopen, freopen)
--   time_s      time inside the calls, summed over all threads
--   blocking_s  the part of time_s for which the calls blocked the step loop (blocking_files)
--   size_bytes  the largest known size; see files
--   read_times  bytes read / size; NULL: no bytes read, not a regular file, or size unknown or 0
WITH blocking AS (
    SELECT b.file, o.layer, sum(b.ns) / 1e9 AS s
    FROM blocking_files AS b
    JOIN ops AS o ON o.op_number = b.op_number
    GROUP BY b.file, o.layer
)
SELECT
    s.file,
    s.layer,
    f.path,
    coalesce(f.path_class, 'unknown') AS path_class,
    f.kind,
    f.size_bytes,
    s.calls,
    coalesce(s.opens, 0) AS opens,
    coalesce(s.read_bytes, 0) AS read_bytes,
    coalesce(s.written_bytes, 0) AS written_bytes,
    s.ns / 1e9 AS time_s,
    coalesce(b.s, 0) AS blocking_s,
    CASE
        WHEN f.kind = 'regular' AND s.read_bytes > 0
            THEN s.read_bytes / nullif(f.size_bytes, 0)
    END AS read_times
FROM file_sums AS s
LEFT JOIN files AS f ON f.file = s.file
LEFT JOIN blocking AS b ON b.file = s.file AND b.layer = s.layer
WHERE f.kind IS NULL OR f.kind NOT IN ('pipe', 'socket', 'terminal')
