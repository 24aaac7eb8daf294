-- Bytes by rank, layer, direction and bin of $width_ns from the run's start.  As in heatmap_update of
-- darshan-heatmap.c, the bytes of a call are spread evenly over the duration of the call and rounded in each bin.
WITH moved AS (
    SELECT
        r.rank,
        k.layer = 'stdio' AS is_stdio,
        k.kind = 'write' AS is_write,
        e.moved_bytes,
        e.start_ns,
        e.start_ns + e.duration_ns AS end_ns
    FROM events_raw AS e
    JOIN darshan_kinds AS k ON k.op_number = e.op_number
    JOIN darshan_names AS n ON n.file = e.file
    JOIN darshan_ranks AS r ON r.process = e.process
    WHERE k.kind IN ('read', 'write') AND e.errno = 0 AND e.duration_ns IS NOT NULL
        AND e.moved_bytes > 0 AND e.start_ns >= 0
),
spread AS (
    SELECT rank, is_stdio, is_write, start_ns // $width_ns AS bin, moved_bytes AS bytes
    FROM moved
    WHERE start_ns // $width_ns = end_ns // $width_ns
    UNION ALL
    SELECT
        rank,
        is_stdio,
        is_write,
        bin,
        round(
            moved_bytes * ((least(end_ns, (bin + 1) * $width_ns) - greatest(start_ns, bin * $width_ns))
                / (end_ns - start_ns))
        )
    FROM (
        SELECT *, unnest(range(start_ns // $width_ns, end_ns // $width_ns + 1)) AS bin
        FROM moved
        WHERE start_ns // $width_ns < end_ns // $width_ns
    )
)
SELECT rank, is_stdio, is_write, bin, CAST(sum(bytes) AS BIGINT) AS bytes
FROM spread
WHERE bin < $bins
GROUP BY rank, is_stdio, is_write, bin
