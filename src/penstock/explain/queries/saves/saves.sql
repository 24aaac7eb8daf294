-- saves: one row per checkpoint span, outermost in the span's thread, of any process; and one row per wait of the step
-- thread (the thread that takes the steps: see mains) for another thread's save.
--   waits_for_ns  of a wait: start of the awaited save; NULL: the row is a save.  The wait's row names the saving
--           thread as thread, because the saving thread's file calls explain the wait
--   blocks  the span is on the step thread, inside the training stretch and not inside a data wait: the step loop
--           cannot advance.  A save on another thread is in the background.
--   is_failed, errno  the save ended in an exception; the exception's errno, NULL: none
WITH found AS (
    SELECT * FROM timed_spans WHERE kind = 'span' AND name = 'checkpoint' AND is_outermost
),
occupied AS (
    SELECT DISTINCT s.process, s.thread, s.start_ns
    FROM standstills AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    JOIN timed_spans AS w ON w.process = s.process AND w.thread = s.thread
    WHERE w.kind = 'span' AND w.name IN ('data wait', 'checkpoint', 'snapshot')
        AND s.start_ns >= w.start_ns AND s.start_ns < w.end_ns
),
-- Waits ended by a thread that was saving during the wait; the awaited save is the thread's latest save begun before
-- the end of the wait.
waited AS (
    SELECT s.process, f.thread, s.start_ns, least(s.end_ns, m.last_ns) AS end_ns, f.start_ns AS waits_for_ns
    FROM standstills AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    ASOF JOIN found AS f ON f.process = s.process AND f.thread = s.waker AND f.start_ns < s.end_ns
    LEFT JOIN occupied AS o ON o.process = s.process AND o.thread = s.thread AND o.start_ns = s.start_ns
    WHERE s.what = 'other thread' AND f.thread <> s.thread AND f.end_ns > s.start_ns
        AND s.start_ns >= m.first_ns AND s.start_ns < m.last_ns AND o.process IS NULL
),
ended AS (
SELECT
    s.process,
    s.thread,
    s.start_ns,
    s.end_ns,
    s.is_finished,
    coalesce(s.b = 1, false) AS is_failed,
    CASE WHEN s.b = 1 THEN nullif(s.a, 0) END AS errno,
    m.process IS NOT NULL
        AND s.start_ns >= m.first_ns
        AND NOT EXISTS (
            SELECT 1 FROM timed_spans AS w
            WHERE w.kind = 'span' AND w.name = 'data wait' AND w.is_finished
                AND w.process = s.process AND w.thread = s.thread
                AND s.start_ns >= w.start_ns AND s.start_ns < w.end_ns
        ) AS blocks,
    NULL AS waits_for_ns
FROM found AS s
LEFT JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
UNION ALL
SELECT process, thread, start_ns, end_ns, true, false, NULL, true, waits_for_ns FROM waited
)
SELECT
    row_number() OVER (ORDER BY start_ns, process, thread, waits_for_ns IS NOT NULL) AS save_id,
    *
FROM ended
