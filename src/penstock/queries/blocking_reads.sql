-- What kind of POSIX reads of data files, and of files that the job had made, blocked the step loop;
-- seconds are means over main processes.
--   calls, read_bytes  of the reads that began while it was blocked and moved something
--   blocking_s  the time of these reads in which the step loop was blocked by them (blocking_files)
--   empty_s   of it in reads that moved nothing: at the end of a file
--   small_s   in reads that moved less than 256 KiB, empty ones excepted
--   tail_s    in reads that took more than ten times the median of all
--   reads, p50_s, p99_s  of all such reads that moved something, blocking or not
-- Where helpers read side by side, blocking_s is split as the sum of their times is.
WITH kinds AS (
    SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access
),
pieces AS (
    SELECT moved_bytes, duration_ns, begins, to_ns - from_ns AS ns
    FROM inside
    WHERE is_blocking
        AND op_number IN (FROM kinds)
        AND path_class IN ('data', 'output')
),
sums AS (
    SELECT
        count(*) FILTER (WHERE begins AND moved_bytes > 0) AS calls,
        sum(moved_bytes) FILTER (WHERE begins) AS bytes,
        sum(ns) AS ns,
        sum(ns) FILTER (WHERE moved_bytes = 0) AS empty_ns,
        sum(ns) FILTER (WHERE moved_bytes BETWEEN 1 AND 262143) AS small_ns,
        sum(ns) FILTER (WHERE duration_ns > 10 * (SELECT p50_ns FROM read_quantiles)) AS tail_ns
    FROM pieces
),
blocked AS (
    SELECT coalesce(sum(b.ns), 0) / 1e9 / greatest(1, (SELECT count(*) FROM mains)) AS s
    FROM blocking_files AS b
    LEFT JOIN file_kinds AS k ON k.file = b.file
    WHERE b.op_number IN (FROM kinds)
        AND b.file IS NOT NULL
        AND coalesce(k.path_class, 'data') IN ('data', 'output')
)
SELECT
    CAST(coalesce(s.calls, 0) AS BIGINT) AS calls,
    CAST(coalesce(s.bytes, 0) AS BIGINT) AS read_bytes,
    b.s AS blocking_s,
    coalesce(b.s * s.empty_ns / nullif(s.ns, 0), 0) AS empty_s,
    coalesce(b.s * s.small_ns / nullif(s.ns, 0), 0) AS small_s,
    coalesce(b.s * s.tail_ns / nullif(s.ns, 0), 0) AS tail_s,
    CAST(coalesce(q.calls, 0) AS BIGINT) AS reads,
    q.p50_ns / 1e9 AS p50_s,
    q.p99_ns / 1e9 AS p99_s
FROM sums AS s
CROSS JOIN blocked AS b
CROSS JOIN read_quantiles AS q
