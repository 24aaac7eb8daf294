-- saves: one row per checkpoint span, outermost in its thread, of any process.
--   blocks  the span is on the thread that takes the steps, inside the training stretch and not inside
--           a data wait: the step loop cannot advance.  A save on another thread is in the background.
WITH checkpoints AS (
    SELECT
        s.process,
        s.thread,
        s.start_ns,
        coalesce(s.start_ns + s.duration_ns, greatest(l.end_ns, s.start_ns)) AS end_ns,
        s.duration_ns IS NOT NULL AS is_finished
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    WHERE s.kind = 'span' AND s.name = 'checkpoint'
),
nested AS (
    SELECT
        *,
        max(end_ns) OVER (
            PARTITION BY process, thread ORDER BY start_ns, end_ns DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM checkpoints
),
inside AS (
    SELECT n.process, n.thread, n.start_ns
    FROM nested AS n
    JOIN spans AS w
        ON w.process = n.process AND w.thread = n.thread AND w.kind = 'span' AND w.name = 'data wait'
    WHERE n.start_ns >= w.start_ns AND n.start_ns < w.start_ns + w.duration_ns
)
SELECT
    row_number() OVER (ORDER BY n.start_ns, n.process, n.thread) AS save_id,
    n.process,
    n.thread,
    n.start_ns,
    n.end_ns,
    n.is_finished,
    m.process IS NOT NULL
        AND n.start_ns >= m.first_ns
        AND NOT EXISTS (
            SELECT 1 FROM inside AS i
            WHERE i.process = n.process AND i.thread = n.thread AND i.start_ns = n.start_ns
        ) AS blocks
FROM nested AS n
LEFT JOIN mains AS m ON m.process = n.process AND m.thread = n.thread
WHERE n.before_ns IS NULL OR n.start_ns >= n.before_ns
