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
    FROM spans
    WHERE kind = 'span' AND name IN ('data wait', 'delivered')
    WINDOW next AS (PARTITION BY process, thread ORDER BY start_ns)
),
data_waits AS (
    SELECT
        s.process,
        s.thread,
        CASE WHEN s.next_name = 'delivered' THEN s.next_index ELSE s.index END AS index,
        CASE WHEN s.duration_ns IS NOT NULL THEN s.a END AS iterator,
        s.start_ns,
        s.duration_ns IS NOT NULL AS is_finished,
        coalesce(s.start_ns + s.duration_ns, greatest(l.end_ns, s.start_ns)) AS end_ns,
        m.first_ns
    FROM marks AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    JOIN lives AS l ON l.process = s.process
    WHERE s.name = 'data wait'
),
begun AS (
    SELECT w.process, w.thread, w.start_ns, max(o.index) AS iterator
    FROM data_waits AS w
    JOIN spans AS o
        ON o.process = w.process AND o.kind = 'span' AND o.name = 'loader' AND o.start_ns <= w.start_ns
    WHERE w.iterator IS NULL
    GROUP BY w.process, w.thread, w.start_ns
),
nested AS (
    SELECT
        *,
        max(end_ns) OVER (
            PARTITION BY process, thread ORDER BY start_ns, end_ns DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM data_waits
)
SELECT
    row_number() OVER (ORDER BY n.process, n.start_ns) AS wait_id,
    n.process,
    n.thread,
    n.index,
    coalesce(n.iterator, b.iterator) AS iterator,
    n.start_ns,
    n.end_ns,
    n.is_finished,
    n.start_ns >= n.first_ns AS in_wall
FROM nested AS n
LEFT JOIN begun AS b
    ON b.process = n.process AND b.thread = n.thread AND b.start_ns = n.start_ns
WHERE n.before_ns IS NULL OR n.start_ns >= n.before_ns
