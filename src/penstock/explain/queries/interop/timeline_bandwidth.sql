-- Bandwidth of a timeline in bins of bin_ns from from_ns on: as bandwidth.sql, but of any stretch of
-- the run, and classes summed.
WITH moved AS (
    SELECT
        o.layer,
        o.op_group,
        e.moved_bytes,
        e.start_ns - $from_ns AS start_ns,
        e.start_ns - $from_ns + greatest(1, e.duration_ns) AS end_ns
    FROM file_calls AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE o.is_access
        AND e.path_class IN ('data', 'output')
        AND e.moved_bytes > 0
        AND e.duration_ns IS NOT NULL
        AND e.start_ns < $to_ns
        AND e.start_ns + greatest(1, e.duration_ns) > $from_ns
),
cut AS (
    SELECT
        *,
        unnest(range(
            greatest(0, start_ns) // $bin_ns, least(end_ns - 1, $to_ns - $from_ns - 1) // $bin_ns + 1
        )) AS bin
    FROM moved
)
SELECT
    layer,
    op_group,
    CAST(bin AS BIGINT) AS bin,
    CAST(sum(
        moved_bytes * (least(end_ns, (bin + 1) * $bin_ns) - greatest(start_ns, bin * $bin_ns))
            / (end_ns - start_ns)
    ) AS DOUBLE) AS bytes
FROM cut
GROUP BY layer, op_group, bin
ORDER BY layer, op_group, bin
