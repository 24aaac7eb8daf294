-- process_totals: for each process, the number and seconds of file calls, and the end of the last call of any layer.
SELECT
    t.process,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.layer IN ('posix', 'stdio')), 0) AS BIGINT) AS calls,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.layer IN ('posix', 'stdio')), 0) / 1e9 AS time_s,
    max(t.last_ns) AS last_ns
FROM op_totals AS t
JOIN ops AS o ON o.op_number = t.op_number
GROUP BY t.process
