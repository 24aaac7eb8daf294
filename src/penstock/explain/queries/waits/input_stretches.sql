-- input_stretches: where a thread that takes steps computed nothing that was seen: what it waits for a
-- batch lies in them, whatever the loader.  Their time is an upper bound of the data wait.
--   began    'step ended', 'step began' (one that the program marks), 'backward ended', 'evaluation'
--            (a forward pass without gradients began)
--   ended    'forward', 'evaluation', 'step began', 'backward', 'optimizer', 'step ended'
--   is_tight  true: the stretch contains no computation; false: the stretch may contain a computation, because the
--            start of the computation or the end of an evaluation was not recorded
--   cpu_ns   time of the thread on a CPU inside
SELECT
    process,
    thread,
    start_ns,
    start_ns + duration_ns AS end_ns,
    CASE index
        WHEN 1 THEN 'step began'
        WHEN 2 THEN 'backward ended'
        WHEN 3 THEN 'evaluation'
        ELSE 'step ended'
    END AS began,
    CASE a
        WHEN 1 THEN 'forward'
        WHEN 2 THEN 'step began'
        WHEN 3 THEN 'evaluation'
        WHEN 4 THEN 'backward'
        WHEN 5 THEN 'optimizer'
        ELSE 'step ended'
    END AS ended,
    index IS DISTINCT FROM 3 AND (a IN (1, 2, 3) OR (a = 5 AND index = 2)) AS is_tight,
    b AS cpu_ns
FROM spans
WHERE kind = 'span' AND name = 'input stretch' AND duration_ns IS NOT NULL
