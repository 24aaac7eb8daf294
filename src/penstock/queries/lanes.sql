-- What each lane did over the run, in equal bins: as many as make 36,000 cells, at most 2,000.  One row
-- per lane and bin in which something happened; lane as in lane_list.
--   bin_s        the bin's width, from the run's start
--   moved_bytes  of its file calls, spread evenly over a call's time; of POSIX and STDIO, which are
--                never added, the layer that moved more in this lane
--   call_s       in file calls of both layers, those in flight included
--   calls        that began in the bin
--   wait_s       the step loop waited for this lane: for the batch it owed, or for its checkpoint
WITH extent AS (
    SELECT min(start_ns) AS start_ns, greatest(1, max(end_ns) - min(start_ns)) AS run_ns FROM lives
),
bins AS (
    SELECT
        start_ns,
        CAST(ceil((run_ns + 1) / (
            SELECT least(2000, 36000 // greatest(1, count(*))) FROM lane_list
        )) AS BIGINT) AS ns
    FROM extent
),
calls AS (
    SELECT
        e.process,
        e.thread,
        e.op_number,
        e.moved_bytes,
        greatest(0, e.start_ns - b.start_ns) AS start_ns,
        -- NULL, not the 1 that greatest makes of it, where the call is in flight.
        greatest(0, e.start_ns - b.start_ns)
            + CASE WHEN e.duration_ns IS NOT NULL THEN greatest(1, e.duration_ns) END AS end_ns,
        b.ns
    FROM file_calls AS e
    CROSS JOIN bins AS b
),
long AS (
    SELECT
        c.process,
        c.thread,
        c.op_number,
        c.moved_bytes,
        c.start_ns,
        coalesce(c.end_ns, greatest(c.start_ns + 1, l.end_ns - b.start_ns)) AS end_ns,
        c.ns
    FROM calls AS c
    CROSS JOIN bins AS b
    JOIN lives AS l ON l.process = c.process
    WHERE c.end_ns IS NULL OR c.start_ns // c.ns < c.end_ns // c.ns
),
spread AS (
    -- Summed before anything is looked up: nearly all calls are here.
    SELECT
        process,
        thread,
        op_number,
        start_ns // ns AS bin,
        sum(moved_bytes) AS bytes,
        count(*) AS calls,
        sum(end_ns - start_ns) AS call_ns
    FROM calls
    WHERE start_ns // ns = end_ns // ns
    GROUP BY process, thread, op_number, bin
    UNION ALL
    SELECT
        process,
        thread,
        op_number,
        bin,
        sum(
            moved_bytes * (least(end_ns, (bin + 1) * ns) - greatest(start_ns, bin * ns))
                / (end_ns - start_ns)
        ),
        count(*) FILTER (WHERE bin = start_ns // ns),
        sum(least(end_ns, (bin + 1) * ns) - greatest(start_ns, bin * ns))
    FROM (SELECT *, unnest(range(start_ns // ns, end_ns // ns + 1)) AS bin FROM long)
    GROUP BY process, thread, op_number, bin
),
layers AS (
    SELECT
        n.lane,
        o.layer,
        s.bin,
        coalesce(sum(s.bytes) FILTER (WHERE o.is_access), 0) AS bytes,
        sum(s.calls) AS calls,
        sum(s.call_ns) AS call_ns
    FROM spread AS s
    JOIN ops AS o ON o.op_number = s.op_number
    JOIN lane_list AS n ON n.process = s.process AND n.thread = s.thread
    GROUP BY n.lane, o.layer, s.bin
),
chosen AS (
    SELECT lane, arg_max(layer, bytes) AS layer
    FROM (SELECT lane, layer, sum(bytes) AS bytes FROM layers GROUP BY lane, layer)
    GROUP BY lane
),
waited AS (
    SELECT
        n.lane,
        greatest(0, s.from_ns - b.start_ns) AS from_ns,
        greatest(0, s.to_ns - b.start_ns) AS to_ns,
        b.ns
    FROM stretches AS s
    JOIN lane_list AS n ON n.process = s.process AND n.thread = s.thread
    CROSS JOIN bins AS b
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
    (SELECT ns FROM bins) / 1e9 AS bin_s,
    CAST(sum(bytes) AS DOUBLE) AS moved_bytes,
    CAST(sum(calls) AS BIGINT) AS calls,
    sum(call_ns) / 1e9 AS call_s,
    sum(wait_ns) / 1e9 AS wait_s
FROM cells
GROUP BY lane, bin
HAVING sum(bytes) + sum(calls) + sum(call_ns) + sum(wait_ns) > 0
ORDER BY lane, bin
