-- Bandwidth over the run in at most 600 equal bins: bytes moved by calls on data and output files.  The
-- bytes of a call are spread evenly over its time.  Layers are kept apart.
--   bin_s   the bin's width;  from_s  its begin, from the run's start
WITH extent AS (
    SELECT min(start_ns) AS start_ns, greatest(1, max(end_ns) - min(start_ns)) AS run_ns FROM lives
),
bins AS (
    SELECT start_ns, CAST(ceil((run_ns + 1) / 600) AS BIGINT) AS ns FROM extent
),
moved AS (
    SELECT
        o.layer,
        o.op_group,
        e.path_class AS class,
        e.moved_bytes,
        greatest(0, e.start_ns - b.start_ns) AS start_ns,
        greatest(0, e.start_ns - b.start_ns) + greatest(1, e.duration_ns) AS end_ns,
        b.ns
    FROM file_calls AS e
    JOIN ops AS o ON o.op_number = e.op_number
    CROSS JOIN bins AS b
    WHERE o.is_access
        AND e.path_class IN ('data', 'output')
        AND e.moved_bytes > 0
        AND e.duration_ns IS NOT NULL
),
spread AS (
    SELECT layer, op_group, class, start_ns // ns AS bin, sum(moved_bytes) AS bytes
    FROM moved
    WHERE start_ns // ns = end_ns // ns
    GROUP BY layer, op_group, class, bin
    UNION ALL
    SELECT
        layer,
        op_group,
        class,
        bin,
        moved_bytes * (least(end_ns, (bin + 1) * ns) - greatest(start_ns, bin * ns))
            / (end_ns - start_ns)
    FROM (
        SELECT *, unnest(range(start_ns // ns, end_ns // ns + 1)) AS bin
        FROM moved
        WHERE start_ns // ns < end_ns // ns
    )
)
SELECT
    s.layer,
    s.op_group,
    s.class,
    s.bin,
    (SELECT ns FROM bins) / 1e9 AS bin_s,
    CAST(sum(s.bytes) AS DOUBLE) AS bytes
FROM spread AS s
GROUP BY s.layer, s.op_group, s.class, s.bin
ORDER BY s.layer, s.op_group, s.class, s.bin
