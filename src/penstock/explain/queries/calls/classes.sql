-- File calls by path class and layer: bytes read and written, and time in calls.  'other than files' are
-- pipes, sockets and terminals: calls wait for the other end, not for storage.
WITH files_of AS (
    SELECT
        path_class,
        layer,
        -- A file opened as itself and as a staged copy has two numbers and a single path.
        count(DISTINCT coalesce(path, CAST(file AS VARCHAR))) FILTER (WHERE kind = 'regular') AS files
    FROM file_totals
    GROUP BY path_class, layer
)
SELECT
    t.path_class,
    o.layer,
    coalesce(any_value(f.files), 0) AS files,
    CAST(sum(t.calls) AS BIGINT) AS calls,
    CAST(coalesce(sum(t.moved_bytes) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0) AS BIGINT)
        AS read_bytes,
    CAST(coalesce(sum(t.moved_bytes) FILTER (WHERE o.is_access AND o.op_group = 'write'), 0) AS BIGINT)
        AS written_bytes,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'read'), 0) / 1e9 AS read_s,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'write'), 0) / 1e9 AS write_s,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'metadata'), 0) / 1e9 AS metadata_s
FROM op_totals AS t
JOIN ops AS o ON o.op_number = t.op_number
LEFT JOIN files_of AS f ON f.path_class = t.path_class AND f.layer = o.layer
WHERE o.layer IN ('posix', 'stdio')
GROUP BY t.path_class, o.layer
ORDER BY sum(t.duration_ns) DESC, t.path_class, o.layer
