-- input_stretches: stretches in which a thread that takes steps ran no recorded computation.  With any loader, the
-- thread waits for a batch only inside input stretches: the time of the stretches is an upper bound of the data wait.
--   began    the event at the start: 'step ended', 'step began' (a step marked by the program), 'backward ended',
--            'evaluation' (a forward pass without gradients began)
--   ended    the event at the end: 'forward', 'evaluation', 'step began', 'backward', 'optimizer', 'step ended'
--   is_tight  true: the stretch contains no computation; false: the stretch may contain a computation, because the
--            start of the computation or the end of an evaluation was not recorded
--   cpu_ns   time of the thread on a CPU inside the stretch
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
