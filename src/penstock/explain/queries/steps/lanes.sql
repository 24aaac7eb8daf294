-- The activity of each lane over the run, in equal bins: each bin has as many pieces of `binned` as needed
-- for at most 36,000 cells.  One row per lane and bin with any activity; lane as in lane_list.
--   bin_s        the width of a bin; bins begin at the start of the run
--   moved_bytes  bytes of the lane's file calls, spread evenly over the time of a call; POSIX and STDIO are never
--                added: the layer with more bytes in the lane counts
--   call_s       time in file calls of both layers, calls in flight included
--   calls        number of file calls begun in the bin
--   wait_s       time in which the step loop waited for the lane: for the batch owed by the lane, or for the lane's
--                checkpoint
WITH extent AS (
    SELECT min(start_ns) AS start_ns, greatest(1, max(end_ns) - min(start_ns)) AS run_ns FROM lives
),
gathered AS (
    SELECT e.start_ns, n.pieces, n.pieces * CAST(ceil((e.run_ns + 1) / 1800) AS BIGINT) AS ns
    FROM extent AS e
    CROSS JOIN (
        SELECT greatest(1, CAST(ceil(count(*) / 20) AS BIGINT)) AS pieces FROM lane_list
    ) AS n
),
layers AS (
    SELECT
        n.lane,
        o.layer,
        b.bin // g.pieces AS bin,
        coalesce(sum(b.moved_bytes) FILTER (WHERE o.is_access), 0) AS bytes,
        sum(b.calls) AS calls,
        sum(b.call_ns) AS call_ns
    FROM binned AS b
    JOIN ops AS o ON o.op_number = b.op_number
    JOIN lane_threads AS n ON n.process = b.process AND n.thread = b.thread
    CROSS JOIN gathered AS g
    GROUP BY n.lane, o.layer, 3
),
chosen AS (
    SELECT lane, arg_max(layer, bytes) AS layer
    FROM (SELECT lane, layer, sum(bytes) AS bytes FROM layers GROUP BY lane, layer)
    GROUP BY lane
),
waited AS (
    SELECT
        n.lane,
        greatest(0, s.from_ns - g.start_ns) AS from_ns,
        greatest(0, s.to_ns - g.start_ns) AS to_ns,
        g.ns
    FROM stretches AS s
    JOIN lane_threads AS n ON n.process = s.process AND n.thread = s.thread
    CROSS JOIN gathered AS g
    WHERE s.is_blocking AND s.kind <> 'step'
),
cells AS (
    SELECT
        s.lane,
        s.bin,
        sum(CASE WHEN s.layer = c.layer THEN s.bytes ELSE 0 END) AS bytes,
        sum(s.calls) AS calls,
        sum(s.call_ns) AS call_ns,
        0 AS wait_ns
    FROM layers AS s
    JOIN chosen AS c ON c.lane = s.lane
    GROUP BY s.lane, s.bin
    UNION ALL
    SELECT lane, bin, 0, 0, 0, sum(greatest(0, least(to_ns, (bin + 1) * ns) - greatest(from_ns, bin * ns)))
    FROM (
        SELECT *, unnest(range(from_ns // ns, to_ns // ns + 1)) AS bin FROM waited
    )
    GROUP BY lane, bin
)
SELECT
    lane,
    bin,
    (SELECT ns FROM gathered) / 1e9 AS bin_s,
    CAST(sum(bytes) AS DOUBLE) AS moved_bytes,
    CAST(sum(calls) AS BIGINT) AS calls,
    sum(call_ns) / 1e9 AS call_s,
    sum(wait_ns) / 1e9 AS wait_s
FROM cells
GROUP BY lane, bin
HAVING sum(bytes) + sum(calls) + sum(call_ns) + sum(wait_ns) > 0
ORDER BY lane, bin
