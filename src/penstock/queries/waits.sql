-- waits: one row per data wait: a stretch in which the thread that takes the steps is blocked in the
-- outermost `next` of a loader.
--   index     number of the batch waited for: as announced when the wait began, unless a 'delivered'
--             after it says that another one came; NULL: none came, the pass was over
--   iterator  the loader's iterator in that process; of a wait in flight, the latest one begun
--   in_wall   false for the first batch, which belongs to start-up
WITH marks AS (
    SELECT
        *,
        lead(name) OVER next AS next_name,
        lead(index) OVER next AS next_index
    FROM timed_spans
    WHERE kind = 'span' AND name IN ('data wait', 'delivered')
    WINDOW next AS (PARTITION BY process, thread ORDER BY start_ns)
),
begun AS (
    SELECT w.process, w.thread, w.start_ns, max(o.index) AS iterator
    FROM marks AS w
    JOIN spans AS o
        ON o.process = w.process AND o.kind = 'span' AND o.name = 'loader' AND o.start_ns <= w.start_ns
    WHERE w.name = 'data wait' AND NOT w.is_finished
    GROUP BY w.process, w.thread, w.start_ns
)
SELECT
    row_number() OVER (ORDER BY w.process, w.start_ns) AS wait_id,
    w.process,
    w.thread,
    CASE WHEN w.next_name = 'delivered' THEN w.next_index ELSE w.index END AS index,
    coalesce(w.a, b.iterator) AS iterator,
    w.start_ns,
    w.end_ns,
    w.is_finished,
    w.start_ns >= m.first_ns AS in_wall
FROM marks AS w
JOIN mains AS m ON m.process = w.process AND m.thread = w.thread
LEFT JOIN begun AS b
    ON b.process = w.process AND b.thread = w.thread AND b.start_ns = w.start_ns
WHERE w.name = 'data wait' AND w.is_outermost
