-- loader_waits: one row per data wait reported by a known loader: a stretch in which the thread that takes the
-- steps is blocked in the outermost `next` of a loader, in making the loader's iterator or in ending the loader's
-- workers, or in which a graph called by the thread asks a tf.data iterator.
--   index     number of the awaited batch, as announced at the start of the wait, unless a later 'delivered'
--             names another batch; NULL: no batch came, because the epoch is over or only begins.  -2 in a
--             'delivered': no batch came, because next() raised before the end of the epoch
--   is_start  true: the loader makes an iterator and starts the workers
--   iterator  number of the loader's iterator in the process; for a wait in flight, the latest iterator
--   in_wall   false for the first batch, which belongs to start-up
--   is_pooled  true: the loader (tf.data, Grain) does not report the maker of a batch: expect no fetch
--   cpu_ns    of a pooled wait: CPU time of the whole process during the wait; NULL: not measured
--   delay_ns  of a pooled wait: run-queue delay of all threads of the process during the wait.  If the delay was not
--             sampled: cpu_ns times the ratio of delay to CPU time in the process's other waits; NULL: not measured
WITH marks AS (
    SELECT
        *,
        lead(name) OVER next AS next_name,
        lead(index) OVER next AS next_index,
        lead(b) OVER next AS next_b,
        lead(name, 2) OVER next AS second_name,
        lead(b, 2) OVER next AS second_b,
        lead(name, 3) OVER next AS third_name,
        lead(b, 3) OVER next AS third_b
    FROM timed_spans
    WHERE kind = 'span' AND name IN ('data wait', 'delivered', 'wait cpu', 'wait delay')
    WINDOW next AS (PARTITION BY process, thread ORDER BY start_ns)
),
told AS (
    SELECT
        process,
        thread,
        CASE WHEN next_name = 'delivered' AND next_index IS DISTINCT FROM -2 THEN next_index ELSE index END
            AS index,
        a AS iterator,
        start_ns,
        end_ns,
        is_finished,
        coalesce(
            next_name = 'wait cpu' OR (next_name = 'delivered' AND second_name = 'wait cpu'), false
        ) AS is_told,
        CASE WHEN next_name = 'wait cpu' THEN next_b ELSE second_b END AS cpu_ns,
        CASE
            WHEN next_name = 'wait cpu' THEN CASE WHEN second_name = 'wait delay' THEN second_b END
            WHEN third_name = 'wait delay' THEN third_b
        END AS delay_ns,
        false AS is_start
    FROM marks
    WHERE name = 'data wait' AND is_outermost
    UNION ALL
    SELECT process, thread, index, NULL, start_ns, end_ns, true, true, cpu_ns, delay_ns, false
    FROM graph_waits
    UNION ALL
    SELECT process, thread, NULL, a, start_ns, end_ns, is_finished, false, NULL, NULL, name = 'loader start'
    FROM timed_spans
    WHERE kind = 'span' AND name IN ('loader start', 'loader end')
),
begun AS (
    SELECT w.process, w.thread, w.start_ns, max(o.index) AS iterator
    FROM told AS w
    JOIN spans AS o
        ON o.process = w.process AND o.kind = 'span' AND o.name = 'loader' AND o.start_ns <= w.start_ns
    WHERE w.iterator IS NULL
    GROUP BY w.process, w.thread, w.start_ns
)
SELECT
    w.process,
    w.thread,
    w.index,
    coalesce(w.iterator, b.iterator) AS iterator,
    w.start_ns,
    w.end_ns,
    w.is_finished,
    w.start_ns >= m.first_ns AS in_wall,
    w.is_told OR (NOT w.is_finished AND bool_or(w.is_told) OVER (PARTITION BY w.process, w.thread))
        AS is_pooled,
    CASE WHEN w.is_told THEN w.cpu_ns END AS cpu_ns,
    CASE
        WHEN w.is_told
        THEN coalesce(w.delay_ns, w.cpu_ns
            * sum(CASE WHEN w.is_told THEN w.delay_ns END) OVER (PARTITION BY w.process)
            / nullif(sum(CASE WHEN w.is_told AND w.delay_ns IS NOT NULL THEN w.cpu_ns END)
                OVER (PARTITION BY w.process), 0))
    END AS delay_ns,
    w.is_start
FROM told AS w
JOIN mains AS m ON m.process = w.process AND m.thread = w.thread
    AND (w.index IS NOT NULL OR w.start_ns < m.last_ns)  -- when the program ends, workers end too: no data wait
LEFT JOIN begun AS b
    ON b.process = w.process AND b.thread = w.thread AND b.start_ns = w.start_ns
