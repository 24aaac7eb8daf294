-- File calls by layer and op.  POSIX and STDIO are two views of the same bytes and are never added.
--   time_s  inside the calls, summed over all threads: not the waiting time of the training
--           NULL: an imported run that does not separate the op's time from the time of other ops
--   p50_s, p99_s  from bins of 1/16 octave: the middle of the call's bin, within 2.2 %
WITH sums AS (
    SELECT
        op_number,
        sum(calls) AS calls,
        sum(errors) AS errors,
        sum(asked_bytes) AS asked_bytes,
        sum(moved_bytes) AS moved_bytes,
        sum(duration_ns) / 1e9 AS time_s,
        max(max_duration_ns) / 1e9 AS max_s
    FROM op_totals
    WHERE path_class <> 'other than files'
    GROUP BY op_number
),
bins AS (
    SELECT op_number, bin, sum(calls) AS calls FROM call_bins GROUP BY op_number, bin
),
running AS (
    SELECT
        op_number,
        bin,
        sum(calls) OVER (PARTITION BY op_number ORDER BY bin) AS up_to,
        sum(calls) OVER (PARTITION BY op_number) AS total
    FROM bins
),
quantiles AS (
    SELECT
        op_number,
        2 ** ((min(bin) FILTER (WHERE up_to >= 0.50 * total) + 0.5) / 16) / 1e9 AS p50_s,
        2 ** ((min(bin) FILTER (WHERE up_to >= 0.99 * total) + 0.5) / 16) / 1e9 AS p99_s
    FROM running
    GROUP BY op_number
)
SELECT
    o.layer,
    o.op,
    CAST(s.calls AS BIGINT) AS calls,
    CAST(s.errors AS BIGINT) AS errors,
    CAST(s.asked_bytes AS BIGINT) AS asked_bytes,
    CAST(CASE WHEN o.is_access THEN s.moved_bytes ELSE 0 END AS BIGINT) AS moved_bytes,
    s.time_s,
    s.time_s / nullif(s.calls, 0) AS mean_s,
    CASE WHEN q.p50_s IS NOT NULL THEN least(q.p50_s, s.max_s) END AS p50_s,
    CASE WHEN q.p99_s IS NOT NULL THEN least(q.p99_s, s.max_s) END AS p99_s,
    s.max_s
FROM sums AS s
JOIN ops AS o ON o.op_number = s.op_number
LEFT JOIN quantiles AS q ON q.op_number = s.op_number
WHERE o.layer IN ('posix', 'stdio')
ORDER BY s.time_s DESC NULLS LAST, o.layer, o.op
