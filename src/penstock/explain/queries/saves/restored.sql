-- restored: stretches in which a process loaded a checkpoint into memory, until the end of the process's
-- first step; the stretches of a thread do not overlap.
--   kind  'restore': a call that loads a checkpoint; 'load state': a call that copies loaded values into a
--         model, and reads the file if the file was only mapped; 'page fault': outside both calls, a page of
--         a checkpoint file was not in memory
--   is_failed  the call ended in an exception
-- Loading inside a loader's worker or a data wait reads samples, and does not count.
WITH bounds AS (
    SELECT r.process, r.thread AS step_thread, min(s.end_ns) AS end_ns
    FROM roles AS r
    LEFT JOIN steps AS s ON s.process = r.process
    WHERE r.role <> 'worker'
    GROUP BY r.process, r.thread
),
told AS (
    SELECT s.process, s.thread, s.name, s.start_ns, s.end_ns, coalesce(s.b = 1, false) AS is_failed
    FROM timed_spans AS s
    JOIN bounds AS b ON b.process = s.process
    WHERE s.kind = 'span' AND s.is_outermost AND s.name IN ('restore', 'load state')
        AND s.start_ns < coalesce(b.end_ns, s.end_ns + 1)
        AND NOT EXISTS (
            SELECT 1 FROM timed_spans AS w
            WHERE w.kind = 'span' AND w.name = 'data wait'
                AND w.process = s.process AND w.thread = s.thread
                AND s.start_ns >= w.start_ns AND s.start_ns < w.end_ns
        )
),
begun AS (
    SELECT process, min(start_ns) AS ns
    FROM told
    WHERE name = 'restore' AND NOT is_failed
    GROUP BY process
),
loads AS (
    SELECT t.*
    FROM told AS t
    LEFT JOIN begun AS g ON g.process = t.process
    WHERE t.name = 'restore' OR g.ns <= t.start_ns
),
touched AS (
    SELECT DISTINCT l.process, e.file
    FROM (  -- most runs load nothing: then no call is examined
        SELECT * FROM file_calls WHERE process IN (SELECT process FROM loads)
    ) AS e
    ASOF JOIN loads AS l
        ON l.process = e.process AND l.thread = e.thread AND l.start_ns <= e.start_ns
    WHERE e.path_class IN ('data', 'output') AND e.start_ns < l.end_ns AND NOT l.is_failed
),
-- Weight files are recognised by name, with any reader: safetensors' own readers map the files.
named AS (
    SELECT file FROM files WHERE regexp_matches(path, '[.](safetensors|gguf|ckpt|pth)$')
),
faulted AS (
    SELECT f.process, f.thread, f.start_ns, f.start_ns + f.duration_ns AS end_ns
    FROM waited_faults AS f
    JOIN bounds AS b ON b.process = f.process
    LEFT JOIN threads AS t ON t.process = f.process AND t.thread = f.thread
    LEFT JOIN touched AS m ON m.process = f.process AND m.file = f.file
    WHERE f.path_class IN ('data', 'output')
        AND (m.file IS NOT NULL OR f.file IN (SELECT file FROM named))
        AND (f.thread = b.step_thread OR t.is_main)
        AND f.start_ns < coalesce(b.end_ns, f.start_ns + 1)
),
outside AS (
    SELECT f.*
    FROM faulted AS f
    ASOF LEFT JOIN loads AS l
        ON l.process = f.process AND l.thread = f.thread AND l.start_ns <= f.start_ns
    WHERE l.end_ns IS NULL OR l.end_ns <= f.start_ns
)
SELECT process, thread, name AS kind, start_ns, end_ns, is_failed FROM loads
UNION ALL
SELECT process, thread, 'page fault', start_ns, end_ns, false FROM outside
