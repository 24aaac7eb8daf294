-- The parts of a beginning (see beginnings) in seconds, a mean over main processes.  The parts sum to the
-- start-up time; in a run without training, to the program's whole life.
--   import         Python's imports, and calls on files of programs and libraries
--   listing        open, stat and list on data, by the beginning's thread
--   reading        reads of data before the first batch
--   cache          making files that are finished before the training: see caches
--   restore        loading a checkpoint
--   worker start, first batch  parts of the waits for the first batch
--   checkpoint, other files  saves; other file calls
--   network, waiting  blocked by a socket; blocked by anything else: see segments
--   cpu            outside all parts above, on a CPU: compiling, making the model and the optimizer.  A lower
--                  bound: the highest possible CPU time of the parts above is subtracted.  NULL: not measured
--   not scheduled  outside all parts above, ready to run without a CPU; also a lower bound
--   not observed   the remaining time
WITH wholes AS (
    SELECT
        s.process,
        s.kind,
        sum(s.to_ns - s.from_ns) AS ns,
        -- Time of the segments up to the last sample of CPU time: the measured CPU time covers no later time.
        sum(greatest(0, least(s.to_ns, coalesce(b.told_ns, s.from_ns)) - s.from_ns)) AS told_ns
    FROM segments AS s
    JOIN beginnings AS b ON b.process = s.process
    WHERE s.kind <> 'paused'
    GROUP BY s.process, s.kind
),
called AS (
    SELECT process, kind, part, sum(ns) AS ns, sum(cpu_ns) AS cpu_ns
    FROM beginning_calls
    GROUP BY process, kind, part
),
-- cpu_ns: CPU time of imports.  blind_ns: the whole time of saves and loads, as an upper bound: the CPU time of saves
-- and loads is not measured.
known AS (
    SELECT process, sum(cpu_ns) AS cpu_ns, sum(blind_ns) AS blind_ns
    FROM (
        SELECT process, cpu_ns, 0 AS blind_ns FROM imports WHERE is_main
        UNION ALL
        SELECT s.process, 0, s.end_ns - s.start_ns
        FROM timed_spans AS s
        JOIN beginnings AS b ON b.process = s.process AND b.thread = s.thread
        WHERE s.kind = 'span' AND s.name IN ('restore', 'load state', 'checkpoint') AND s.is_outermost
            AND s.end_ns <= coalesce(b.told_ns, 0)
    )
    GROUP BY process
),
sums AS (
    SELECT
        b.process,
        b.cpu_ns,
        b.delay_ns,
        coalesce(k.cpu_ns, 0) AS known_ns,
        coalesce(w.ns, 0) - coalesce(c.rest_ns, 0) AS rest_ns,
        coalesce(w.told_ns, 0) - coalesce(w.rest_told_ns, 0) + coalesce(c.rest_ns, 0) AS spoken_ns,
        coalesce(k.blind_ns, 0) + coalesce(w.blind_ns, 0) + coalesce(c.cpu_ns, 0) AS blind_ns
    FROM beginnings AS b
    LEFT JOIN known AS k ON k.process = b.process
    LEFT JOIN (
        SELECT
            process,
            sum(ns) FILTER (WHERE kind = 'rest') AS ns,
            sum(told_ns) AS told_ns,
            sum(told_ns) FILTER (WHERE kind = 'rest') AS rest_told_ns,
            sum(told_ns) FILTER (WHERE kind IN ('worker start', 'first batch', 'cache')) AS blind_ns
        FROM wholes
        GROUP BY process
    ) AS w ON w.process = b.process
    LEFT JOIN (
        SELECT process, sum(ns) FILTER (WHERE kind = 'rest') AS rest_ns,
            sum(cpu_ns) FILTER (WHERE kind = 'rest') AS cpu_ns
        FROM called
        GROUP BY process
    ) AS c ON c.process = b.process
),
on_cpu AS (
    SELECT
        *,
        CASE  -- greatest ignores NULL
            WHEN cpu_ns IS NOT NULL
            THEN least(greatest(0, rest_ns), greatest(0, cpu_ns - known_ns - blind_ns))
        END AS ns
    FROM sums
),
delayed AS (
    SELECT
        *,
        least(
            greatest(0, rest_ns - coalesce(ns, 0)),
            greatest(0, coalesce(delay_ns, 0) - greatest(0, spoken_ns - known_ns))
        ) AS queue_ns
    FROM on_cpu
),
parts AS (
    SELECT process, CASE kind WHEN 'helped' THEN 'cache' ELSE kind END AS part, ns
    FROM wholes
    WHERE kind <> 'rest'
    UNION ALL
    SELECT process, 'import', -ns FROM called WHERE kind = 'import' AND part <> 'import'
    UNION ALL
    SELECT process, part, ns FROM called WHERE kind = 'rest' OR part <> 'import'
    UNION ALL
    SELECT process, 'cpu', ns FROM delayed
    UNION ALL
    SELECT process, 'not scheduled', queue_ns FROM delayed
    UNION ALL
    SELECT process, 'not observed', rest_ns - coalesce(ns, 0) - queue_ns FROM delayed
)
SELECT part, s
FROM (
    SELECT
        part,
        CASE WHEN part <> 'cpu' OR count(ns) = count(*) THEN sum(ns) END
            / 1e9 / (SELECT count(*) FROM beginnings) AS s
    FROM parts
    GROUP BY part
)
WHERE s IS NULL OR s > 1e-9
ORDER BY s DESC NULLS LAST, part
