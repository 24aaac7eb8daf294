-- What kind of POSIX reads of data files, and of files that the job had made, blocked the step loop;
-- seconds are means over main processes.
--   calls, read_bytes  of the reads that began while it was blocked and moved something
--   blocking_s  the time of these reads in which the step loop was blocked by them
--   empty_s   of it in reads that moved nothing: at the end of a file
--   small_s   in reads that moved less than 256 KiB, empty ones excepted
--   tail_s    in reads that took more than ten times the median of all
--   reads, p50_s, p99_s  of all such reads that moved something, blocking or not
WITH reads AS (
    SELECT *
    FROM blocking_calls
    WHERE path_class IN ('data', 'output')
        AND op_number IN (
            SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access
        )
),
sums AS (
    SELECT
        count(*) FILTER (WHERE begins AND moved_bytes > 0) AS calls,
        sum(moved_bytes) FILTER (WHERE begins) AS bytes,
        sum(ns) AS ns,
        sum(ns) FILTER (WHERE moved_bytes = 0) AS empty_ns,
        sum(ns) FILTER (WHERE moved_bytes BETWEEN 1 AND 262143) AS small_ns,
        sum(ns) FILTER (WHERE duration_ns > 10 * (SELECT p50_ns FROM read_quantiles)) AS tail_ns,
        1e9 * greatest(1, (SELECT count(*) FROM mains)) AS per
    FROM reads
)
SELECT
    CAST(coalesce(s.calls, 0) AS BIGINT) AS calls,
    CAST(coalesce(s.bytes, 0) AS BIGINT) AS read_bytes,
    coalesce(s.ns, 0) / s.per AS blocking_s,
    coalesce(s.empty_ns, 0) / s.per AS empty_s,
    coalesce(s.small_ns, 0) / s.per AS small_s,
    coalesce(s.tail_ns, 0) / s.per AS tail_s,
    CAST(coalesce(q.calls, 0) AS BIGINT) AS reads,
    q.p50_ns / 1e9 AS p50_s,
    q.p99_ns / 1e9 AS p99_s
FROM sums AS s
CROSS JOIN read_quantiles AS q
