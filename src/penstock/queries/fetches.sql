-- fetches: one row per batch fetched by a worker, or by the main process itself without workers.
--   main       the process that the batch is for
--   worker_ns  when the worker's loop began; NULL where the main process fetches
--   cpu_ns     processor time of the thread inside the fetch; NULL while in flight
--   delay_ns   time of the thread in the run queue inside the fetch; NULL: not measured
WITH workers AS (
    SELECT
        s.process,
        min(s.start_ns) AS worker_ns,
        coalesce(arg_max(m.process, lm.start_ns), min(l.parent)) AS main
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    LEFT JOIN lives AS lm
        ON lm.pid = s.b AND lm.host = l.host AND lm.start_ns <= s.start_ns
            AND lm.process IN (SELECT process FROM mains)
    LEFT JOIN mains AS m ON m.process = lm.process
    WHERE s.kind = 'span' AND s.name = 'worker'
    GROUP BY s.process
),
spans_of_fetches AS (
    SELECT
        s.process,
        s.thread,
        s.name,
        s.index,
        s.a,
        s.b,
        s.start_ns,
        s.duration_ns,
        lead(CASE WHEN s.name = 'fetch delay' THEN s.b END) OVER (
            PARTITION BY s.process, s.thread, s.index ORDER BY s.start_ns
        ) AS delay_ns,
        last_value(CASE WHEN s.name = 'fetch' AND s.duration_ns IS NOT NULL THEN s.a END IGNORE NULLS)
            OVER (PARTITION BY s.process, s.thread ORDER BY s.start_ns) AS iterator
    FROM spans AS s
    WHERE s.kind = 'span' AND s.name IN ('fetch', 'fetch delay')
),
nested AS (
    SELECT
        s.*,
        coalesce(s.start_ns + s.duration_ns, greatest(l.end_ns, s.start_ns)) AS end_ns,
        max(coalesce(s.start_ns + s.duration_ns, l.end_ns)) OVER (
            PARTITION BY s.process, s.thread ORDER BY s.start_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM spans_of_fetches AS s
    JOIN lives AS l ON l.process = s.process
    WHERE s.name = 'fetch'
)
SELECT
    row_number() OVER (ORDER BY n.process, n.thread, n.start_ns) AS fetch_id,
    n.process,
    n.thread,
    coalesce(w.main, n.process) AS main,
    n.iterator,
    n.index,
    n.start_ns,
    n.end_ns,
    w.worker_ns,
    CASE WHEN n.duration_ns IS NOT NULL THEN n.b END AS cpu_ns,
    n.delay_ns
FROM nested AS n
LEFT JOIN workers AS w ON w.process = n.process
WHERE n.before_ns IS NULL OR n.start_ns >= n.before_ns
