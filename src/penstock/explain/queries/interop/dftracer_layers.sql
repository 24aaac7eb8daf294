-- Spans in the form expected by DFAnalyzer's preset for AI jobs (dlio-ailogging): name, category, place, time.
--   ai_root, train  a main process's whole life, and the training stretch
--   compute     steps, less the data waits and checkpoints inside
--   fetch.iter  data waits of the training; fetch.init: the wait for the first batch, in start-up
--   checkpoint  as recorded;  fetch: the fetches of a loader's worker
WITH away AS (
    SELECT s.process, s.thread, s.start_ns, s.start_ns + s.duration_ns AS end_ns
    FROM spans AS s
    WHERE s.kind = 'span' AND s.name IN ('data wait', 'checkpoint') AND s.duration_ns > 0
),
-- Where compute can begin: at the start of a step, or at the end of a data wait or checkpoint inside the step.
begins AS (
    SELECT process, thread, start_ns, end_ns, start_ns AS from_ns FROM steps
    UNION ALL
    SELECT s.process, s.thread, s.start_ns, s.end_ns, a.end_ns
    FROM steps AS s
    JOIN away AS a ON a.process = s.process AND a.thread = s.thread
        AND a.end_ns > s.start_ns AND a.end_ns < s.end_ns
),
compute AS (
    SELECT b.process, b.thread, b.from_ns, coalesce(least(b.end_ns, min(a.start_ns)), b.end_ns) AS to_ns
    FROM begins AS b
    LEFT JOIN away AS a ON a.process = b.process AND a.thread = b.thread
        AND a.start_ns >= b.from_ns AND a.start_ns < b.end_ns
    WHERE NOT EXISTS (
        SELECT 1 FROM away AS o
        WHERE o.process = b.process AND o.thread = b.thread
            AND o.start_ns <= b.from_ns AND o.end_ns > b.from_ns
    )
    GROUP BY b.process, b.thread, b.from_ns, b.end_ns
),
stepping AS (
    SELECT
        process,
        any_value(thread) AS thread,
        min(start_ns) AS from_ns,
        min(end_ns) AS stepped_ns,
        max(end_ns) AS to_ns
    FROM steps
    GROUP BY process
),
first_waits AS (
    SELECT process, min(start_ns) AS start_ns, arg_min(start_ns + duration_ns, start_ns) AS end_ns
    FROM spans
    WHERE kind = 'span' AND name = 'data wait' AND duration_ns IS NOT NULL
    GROUP BY process
),
-- As in mains.sql: training begins with the first step, but not before the first batch has come.
training AS (
    SELECT
        s.process,
        s.thread,
        CASE WHEN w.start_ns < s.stepped_ns THEN greatest(s.from_ns, w.end_ns) ELSE s.from_ns END
            AS from_ns,
        s.to_ns
    FROM stepping AS s
    LEFT JOIN first_waits AS w ON w.process = s.process
)
SELECT 'compute' AS name, 'compute' AS category, process, thread, from_ns, to_ns FROM compute
UNION ALL
SELECT 'train', 'pipeline', process, thread, from_ns, to_ns FROM training
UNION ALL
SELECT 'ai_root', 'ai_root', p.process, t.thread, p.start_ns, p.end_ns
FROM processes AS p
JOIN training AS t ON t.process = p.process
WHERE p.end_ns IS NOT NULL
UNION ALL
SELECT
    CASE
        WHEN s.name = 'checkpoint' THEN 'checkpoint'
        WHEN s.name = 'fetch' THEN 'fetch'
        WHEN s.start_ns < t.from_ns THEN 'fetch.init'
        ELSE 'fetch.iter'
    END,
    CASE WHEN s.name = 'checkpoint' THEN 'checkpoint' ELSE 'dataloader' END,
    s.process,
    s.thread,
    s.start_ns,
    s.start_ns + s.duration_ns
FROM spans AS s
LEFT JOIN training AS t ON t.process = s.process
WHERE s.kind = 'span' AND s.name IN ('checkpoint', 'data wait', 'fetch') AND s.duration_ns IS NOT NULL
ORDER BY from_ns
