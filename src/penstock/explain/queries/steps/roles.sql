-- roles: the role of each process in the training.
--   role       main: takes steps or waits for data; worker: of a loader; other
--   worker     the worker's number
--   worker_ns  the earliest time at which the worker could be asked for a batch: after the begin of the worker's
--              loop and set-up (worker_init_fn, the data set)
--   main       the process for which a worker works; of a main process, the process itself; NULL: role is other
--   thread     of a main process, the thread that takes the steps; see mains
WITH workers AS (
    SELECT
        s.process,
        min(s.index) AS worker,
        coalesce(min(u.end_ns), min(s.start_ns)) AS worker_ns,  -- older recordings have no set-up span
        coalesce(arg_max(m.process, lm.start_ns), min(l.parent)) AS main
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    LEFT JOIN lives AS lm
        ON lm.pid = s.b AND lm.host = l.host AND lm.start_ns <= s.start_ns
            AND lm.process IN (SELECT process FROM mains)
    LEFT JOIN mains AS m ON m.process = lm.process
    LEFT JOIN timed_spans AS u
        ON u.process = s.process AND u.kind = 'span' AND u.name = 'worker setup'
    WHERE s.kind = 'span' AND s.name = 'worker'
    GROUP BY s.process
)
SELECT
    l.process,
    CASE
        WHEN m.process IS NOT NULL THEN 'main'
        WHEN w.process IS NOT NULL THEN 'worker'
        ELSE 'other'
    END AS role,
    w.worker,
    w.worker_ns,
    coalesce(m.process, w.main) AS main,
    m.thread
FROM lives AS l
LEFT JOIN mains AS m ON m.process = l.process
LEFT JOIN workers AS w ON w.process = l.process
