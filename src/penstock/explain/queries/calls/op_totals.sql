-- op_totals: by process, op and class of path.  The class of what is not known is 'unknown', and that of
-- pipes, sockets and terminals is 'other than files'.  empty counts reads and writes that moved nothing;
-- last_ns is when the last of the calls ended.
SELECT
    c.process,
    c.op_number,
    CASE
        WHEN c.file IS NULL THEN 'unknown'
        WHEN k.is_file IS NOT DISTINCT FROM false THEN 'other than files'
        ELSE coalesce(k.path_class, 'data')
    END AS path_class,
    CAST(sum(c.calls) AS BIGINT) AS calls,
    CAST(sum(c.errors) AS BIGINT) AS errors,
    CAST(CASE WHEN count(c.empty) = count(*) THEN sum(c.empty) END AS BIGINT) AS empty,
    CAST(sum(c.asked_bytes) AS BIGINT) AS asked_bytes,
    CAST(sum(c.moved_bytes) AS BIGINT) AS moved_bytes,
    CAST(sum(c.duration_ns) AS BIGINT) AS duration_ns,
    CAST(max(c.max_duration_ns) AS BIGINT) AS max_duration_ns,
    max(c.last_ns) AS last_ns
FROM calls AS c
LEFT JOIN file_kinds AS k ON k.file = c.file
GROUP BY c.process, c.op_number, 3
