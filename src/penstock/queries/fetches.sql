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
told AS (
    SELECT
        *,
        lead(CASE WHEN name = 'fetch delay' THEN b END) OVER (
            PARTITION BY process, thread, index ORDER BY start_ns
        ) AS delay_ns,
        last_value(CASE WHEN name = 'fetch' THEN a END IGNORE NULLS)
            OVER (PARTITION BY process, thread ORDER BY start_ns) AS iterator
    FROM timed_spans
    WHERE kind = 'span' AND name IN ('fetch', 'fetch delay')
)
SELECT
    row_number() OVER (ORDER BY t.process, t.thread, t.start_ns) AS fetch_id,
    t.process,
    t.thread,
    coalesce(w.main, t.process) AS main,
    t.iterator,
    t.index,
    t.start_ns,
    t.end_ns,
    w.worker_ns,
    t.b AS cpu_ns,
    t.delay_ns
FROM told AS t
LEFT JOIN workers AS w ON w.process = t.process
WHERE t.name = 'fetch' AND t.is_outermost
