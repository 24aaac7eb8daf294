-- What kind of POSIX reads of data files, and of files that the job had made, blocked the step loop;
-- seconds are means over main processes.
--   calls, read_bytes  of the reads that began while it was blocked and moved something
--   blocking_s  the time of these reads in which the step loop was blocked by them
--   empty_s   of it in reads that moved nothing: at the end of a file
--   small_s   in reads that moved less than 256 KiB, empty ones excepted
--   tail_s    in reads that took more than ten times the median of all
--   reads, p50_s, p99_s  of all such reads that moved something, blocking or not
WITH kinds AS (
    SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access
),
blocking AS (
    SELECT process, thread, slot, from_ns, to_ns FROM watched WHERE is_blocking
),
calls AS (
    SELECT process, thread, moved_bytes, start_ns, start_ns + duration_ns AS end_ns,
        start_ns // getvariable('slot_ns') AS slot
    FROM file_calls
    WHERE start_ns // getvariable('slot_ns') = (start_ns + duration_ns) // getvariable('slot_ns')
        AND path_class IN ('data', 'output')
        AND op_number IN (FROM kinds)
),
inside AS (
    SELECT
        c.moved_bytes,
        c.end_ns - c.start_ns AS duration_ns,
        c.start_ns >= w.from_ns AS begins,
        least(c.end_ns, w.to_ns) - greatest(c.start_ns, w.from_ns) AS ns
    FROM calls AS c
    JOIN blocking AS w
        ON w.process = c.process AND w.thread = c.thread AND w.slot = c.slot
            AND c.start_ns < w.to_ns AND c.end_ns > w.from_ns
    UNION ALL
    SELECT
        l.moved_bytes,
        l.end_ns - l.start_ns,
        l.start_ns >= s.from_ns,
        least(l.end_ns, s.to_ns) - greatest(l.start_ns, s.from_ns)
    FROM long_calls AS l
    JOIN stretches AS s ON s.stretch_id = l.stretch_id
    LEFT JOIN file_kinds AS k ON k.file = l.file
    WHERE s.is_blocking
        AND l.op_number IN (FROM kinds)
        AND l.file IS NOT NULL
        AND coalesce(k.path_class, 'data') IN ('data', 'output')
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
    FROM inside
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
