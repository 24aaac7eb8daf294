-- beginnings: the stretches of start-up that are split by cause, one row each.  For each main process: from the
-- start of the process to the start of the training stretch.  Without a main process: the whole life of the
-- program, the process with the most time in files and imports.
--   thread       the process's first thread (programs begin in the first thread); step_thread: see mains
--   is_life      no process trains
--   told_ns      time of the last sample of CPU time, no later than to_ns
--   cpu_ns, delay_ns  the first thread's CPU time, and waits for a CPU, until told_ns; NULL: not measured
WITH first_threads AS (
    SELECT process, min(thread) AS thread FROM threads WHERE is_main GROUP BY process
),
imported AS (
    SELECT process, sum(duration_ns) AS ns
    FROM spans
    WHERE kind = 'span' AND a = 1 AND starts_with(name, 'import ')
    GROUP BY process
),
called AS (
    SELECT t.process, sum(t.duration_ns) AS ns
    FROM op_totals AS t
    JOIN ops AS o ON o.op_number = t.op_number
    WHERE o.layer = 'posix' AND t.path_class <> 'other than files'
    GROUP BY t.process
),
programs AS (
    SELECT l.process
    FROM lives AS l
    JOIN first_threads AS t ON t.process = l.process
    LEFT JOIN imported AS i ON i.process = l.process
    LEFT JOIN called AS c ON c.process = l.process
    WHERE NOT EXISTS (SELECT 1 FROM mains)
        -- Recordings of other tools do not show the activity of a process between recorded calls.
        AND l.process IN (SELECT process FROM spans WHERE kind = 'window' AND name = 'window')
    ORDER BY coalesce(i.ns, 0) + coalesce(c.ns, 0) DESC, l.end_ns - l.start_ns DESC, l.process
    LIMIT 1
),
ranges AS (
    SELECT
        m.process,
        coalesce(t.thread, m.thread) AS thread,
        m.thread AS step_thread,
        l.start_ns AS from_ns,
        greatest(l.start_ns, m.first_ns) AS to_ns,
        false AS is_life
    FROM mains AS m
    JOIN lives AS l ON l.process = m.process
    LEFT JOIN first_threads AS t ON t.process = m.process
    UNION ALL
    SELECT p.process, t.thread, t.thread, l.start_ns, l.end_ns, true
    FROM programs AS p
    JOIN lives AS l ON l.process = p.process
    JOIN first_threads AS t ON t.process = p.process
),
told AS (
    SELECT
        r.process,
        max(s.start_ns) AS ns,
        arg_max(s.a, s.start_ns) AS cpu_ns,
        arg_max(nullif(s.b, 0) - 1, s.start_ns) AS delay_ns
    FROM ranges AS r
    JOIN spans AS s ON s.process = r.process AND s.thread = r.thread
    WHERE s.kind = 'span' AND s.name = 'thread cpu' AND s.start_ns <= r.to_ns
    GROUP BY r.process
)
SELECT r.*, t.ns AS told_ns, t.cpu_ns, t.delay_ns
FROM ranges AS r
LEFT JOIN told AS t ON t.process = r.process
