-- op_totals: sums of calls by process, op and class of path.  Calls without a known file have the class 'unknown';
-- calls on pipes, sockets and terminals have the class 'other than files'.  empty counts reads and writes that moved
-- no bytes; last_ns is the end of the last call.
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
