-- mains: one row per main process: a process that takes steps or waits for data and is not a loader's worker.
-- Where some processes take marked steps or optimizer steps, a process with only data waits, or with only a
-- loader's iterations as steps, is not a main process: the process evaluates, or reads for the main processes.
--   thread    the thread that takes the steps; without steps, the thread that waits for data
--   first_ns  begin of the training stretch: the start of the first step, but not before the first batch
--             has arrived (the first batch belongs to start-up).  Without a known loader: the start of the last
--             forward pass that follows a backward pass within the first step, because a program may first
--             warm up, and then take the first batch
--   last_ns   end of the training stretch: the end of the thread's last step, data wait or checkpoint, so a save
--             after the last step counts.  A step in flight does not count.  A wait in flight counts until the
--             process's last sign of life.  In a running process, a file call in flight counts until now
--   wall_ns   time from first_ns to last_ns, minus the time without an open window and the time with paused recording
--   startup_ns, first_batch_ns, after_ns  time before first_ns; the first data wait in startup_ns; time after last_ns
WITH told AS (
    SELECT process, thread, name AS mark, start_ns, end_ns
    FROM timed_spans
    WHERE kind = 'span' AND name IN ('data wait', 'checkpoint')
    UNION ALL
    SELECT process, thread, 'data wait', start_ns, end_ns FROM graph_waits
    UNION ALL
    SELECT process, thread, 'step', start_ns, end_ns FROM steps
    UNION ALL
    SELECT e.process, e.thread, 'call', e.start_ns, greatest(e.start_ns, l.end_ns)
    FROM file_calls AS e
    JOIN processes AS p ON p.process = e.process AND p.state = 'running'
    JOIN lives AS l ON l.process = e.process
    WHERE e.duration_ns IS NULL
),
marks AS (
    FROM told
    WHERE process NOT IN (SELECT process FROM spans WHERE kind = 'span' AND name = 'worker')
),
threads_of_marks AS (
    SELECT
        process,
        thread,
        count(*) FILTER (WHERE mark = 'step') AS steps,
        count(*) FILTER (WHERE mark = 'data wait') AS waits
    FROM marks
    GROUP BY process, thread
),
trainers AS (
    SELECT DISTINCT process FROM spans WHERE kind = 'step' AND duration_ns IS NOT NULL
        AND b IS DISTINCT FROM 2
),
chosen AS (
    SELECT process, thread, steps
    FROM threads_of_marks
    WHERE steps + waits > 0
        AND (process IN (SELECT process FROM trainers) OR NOT EXISTS (SELECT 1 FROM trainers))
    QUALIFY row_number() OVER (PARTITION BY process ORDER BY steps DESC, waits DESC, thread) = 1
),
extents AS (
    SELECT
        c.process,
        c.thread,
        c.steps,
        min(m.start_ns) FILTER (WHERE m.mark = 'step') AS step_ns,
        min(m.end_ns) FILTER (WHERE m.mark = 'step') AS stepped_ns,
        min(m.start_ns) FILTER (WHERE m.mark = 'data wait') AS wait_ns,
        arg_min(m.end_ns, m.start_ns) FILTER (WHERE m.mark = 'data wait') AS waited_ns,
        max(m.end_ns) AS last_ns
    FROM chosen AS c
    JOIN marks AS m ON m.process = c.process AND m.thread = c.thread
    GROUP BY c.process, c.thread, c.steps
),
again AS (
    SELECT e.process, max(i.end_ns) AS forward_ns
    FROM extents AS e
    JOIN input_stretches AS i ON i.process = e.process AND i.thread = e.thread
    WHERE i.began = 'backward ended' AND i.ended = 'forward' AND i.start_ns >= e.step_ns AND i.end_ns < e.stepped_ns
    GROUP BY e.process
),
stretches_of_training AS (
    SELECT
        e.*,
        CASE
            WHEN e.step_ns IS NULL THEN e.waited_ns
            WHEN e.wait_ns < e.stepped_ns THEN greatest(e.step_ns, e.waited_ns)
            ELSE coalesce(a.forward_ns, e.step_ns)
        END AS first_ns
    FROM extents AS e
    LEFT JOIN again AS a ON a.process = e.process
),
covered AS (
    SELECT
        t.process,
        sum(greatest(0, least(w.end_ns, t.last_ns) - greatest(w.start_ns, t.first_ns))) AS ns
    FROM stretches_of_training AS t
    JOIN timed_spans AS w ON w.process = t.process AND w.kind = 'window' AND w.name = 'window'
    GROUP BY t.process
),
lost AS (
    SELECT
        t.process,
        sum(greatest(0, least(p.end_ns, t.last_ns) - greatest(p.start_ns, t.first_ns))) AS wall_ns,
        sum(greatest(0, least(p.end_ns, t.first_ns) - p.start_ns)) AS startup_ns,
        sum(greatest(0, p.end_ns - greatest(p.start_ns, t.last_ns))) AS after_ns
    FROM stretches_of_training AS t
    JOIN pauses AS p ON p.process = t.process
    GROUP BY t.process
)
SELECT
    t.process,
    t.thread,
    t.steps,
    t.first_ns,
    greatest(t.first_ns, t.last_ns) AS last_ns,
    CAST(greatest(
        0, coalesce(c.ns, greatest(0, t.last_ns - t.first_ns)) - coalesce(x.wall_ns, 0)
    ) AS BIGINT) AS wall_ns,
    CAST(greatest(0, t.first_ns - l.start_ns - coalesce(x.startup_ns, 0)) AS BIGINT) AS startup_ns,
    CASE WHEN t.wait_ns < t.first_ns THEN t.waited_ns - t.wait_ns END AS first_batch_ns,
    CAST(greatest(0, l.end_ns - t.last_ns - coalesce(x.after_ns, 0)) AS BIGINT) AS after_ns
FROM stretches_of_training AS t
JOIN lives AS l ON l.process = t.process
LEFT JOIN covered AS c ON c.process = t.process
LEFT JOIN lost AS x ON x.process = t.process
