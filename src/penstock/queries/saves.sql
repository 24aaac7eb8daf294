-- saves: one row per checkpoint span, outermost in its thread, of any process.
--   blocks  the span is on the thread that takes the steps, inside the training stretch and not inside
--           a data wait: the step loop cannot advance.  A save on another thread is in the background.
--   is_failed, errno  it ended in an exception; the errno of that, NULL: it has none
SELECT
    row_number() OVER (ORDER BY s.start_ns, s.process, s.thread) AS save_id,
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
        ) AS blocks
FROM timed_spans AS s
LEFT JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
WHERE s.kind = 'span' AND s.name = 'checkpoint' AND s.is_outermost
