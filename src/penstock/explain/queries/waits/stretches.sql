-- stretches: time cut into stretches.  In each stretch exactly one thread owes exactly one result: a batch, a
-- checkpoint or a step.  The cause of a data wait lies in the thread that fetched the awaited batch (owed_fetches).
-- Kinds of stretches in a data wait:
--   'worker start'  from the start of the wait until the worker's loop began
--   'gap'           the fetching thread was in no fetch, and the owed fetch had not begun
--   'fetch'         the fetching thread was in the owed fetch, or in an earlier fetch that kept the thread busy
--   'hand-over'     from the end of the owed fetch to the end of the wait: pickling, queue, pinned memory
--   'pass end'      the whole wait: the wait ended without a batch, because the epoch was over or the loader
--                   ended the workers
--   'loader start'  the whole wait: the loader makes an iterator and starts the workers
--   'pool'          the whole wait: the maker of the batch is not known.  Any thread of the process or of the
--                   workers may have made the batch
--   'made'          the whole of an inferred wait, in the thread made_by (see waits)
--   'unknown'       in the waiting thread: the whole wait, if no fetch was recorded or the fetching process was
--                   paused during the wait.  In the fetching thread: the rest of the wait, after a fetch that never
--                   ended
-- Kinds of stretches in the other time of the step thread (see mains):
--   'checkpoint'    a blocking checkpoint
--   'step'          the rest of the training stretch
-- Time of a fetch outside data waits is a stretch, too ('fetch' without wait_id): the stretches of a fetch cover
-- the whole fetch.
WITH ranked AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY process, thread ORDER BY start_ns) AS place,
        lag(end_ns) OVER (PARTITION BY process, thread ORDER BY start_ns) AS before_ns
    FROM fetches
),
candidates AS (
    SELECT
        w.wait_id,
        w.process AS main,
        w.thread AS main_thread,
        w.start_ns,
        w.end_ns,
        w.is_finished,
        w.is_pooled,
        w.is_start,
        w.is_inferred,
        w.made_by,
        w.index,
        f.fetch_id,
        f.process,
        f.thread,
        f.place,
        f.worker_ns,
        f.end_ns AS fetched_ns,
        f.cpu_ns IS NOT NULL AS is_fetched
    FROM waits AS w
    LEFT JOIN owed_fetches AS o ON o.wait_id = w.wait_id
    LEFT JOIN ranked AS f ON f.fetch_id = o.fetch_id
),
owed AS (
    SELECT
        *,
        least(end_ns, greatest(start_ns, fetched_ns)) AS ready_ns,
        least(end_ns, greatest(start_ns, fetched_ns), greatest(start_ns, worker_ns)) AS begun_ns
    FROM candidates
    WHERE fetch_id IS NOT NULL
),
points AS (
    SELECT process, thread, begun_ns AS ns, wait_id, 0 AS begins FROM owed
    UNION ALL
    SELECT process, thread, start_ns, NULL, 1 FROM ranked
),
counted AS (
    SELECT
        wait_id,
        greatest(1, sum(begins) OVER (
            PARTITION BY process, thread ORDER BY ns, begins DESC ROWS UNBOUNDED PRECEDING
        )) AS place
    FROM points
),
passed AS (
    SELECT o.wait_id, unnest(range(CAST(c.place AS BIGINT), o.place + 1)) AS place
    FROM owed AS o
    JOIN counted AS c ON c.wait_id = o.wait_id
),
met AS (
    SELECT
        o.wait_id,
        o.main,
        o.process,
        o.thread,
        f.fetch_id,
        greatest(o.begun_ns, f.start_ns) AS from_ns,
        least(o.ready_ns, f.end_ns) AS to_ns,
        greatest(o.begun_ns, coalesce(f.before_ns, o.begun_ns)) AS gap_from_ns,
        least(o.ready_ns, f.start_ns) AS gap_to_ns
    FROM passed AS p
    JOIN owed AS o ON o.wait_id = p.wait_id
    JOIN ranked AS f ON f.process = o.process AND f.thread = o.thread AND f.place = p.place
),
-- wholes: the time to cut: each fetch, and the training stretch of each main process (as fetch 0).  cuts: the
-- parts of fetches inside data waits, and the data waits and blocking saves of the training.  free: the rest.
wholes AS (
    SELECT fetch_id, main, process, thread, start_ns, end_ns FROM fetches
    UNION ALL
    SELECT 0, process, process, thread, first_ns, last_ns FROM mains
),
cuts AS (
    SELECT process, fetch_id, from_ns, to_ns FROM met WHERE to_ns > from_ns
    UNION ALL
    SELECT process, 0, start_ns, end_ns FROM waits WHERE in_wall
    UNION ALL
    SELECT process, 0, start_ns, end_ns FROM saves WHERE blocks
    UNION ALL
    SELECT process, fetch_id, end_ns, end_ns FROM wholes
),
free AS (
    SELECT
        w.fetch_id,
        w.main,
        w.process,
        w.thread,
        coalesce(max(c.to_ns) OVER (
            PARTITION BY c.process, c.fetch_id ORDER BY c.from_ns, c.to_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), w.start_ns) AS from_ns,
        c.from_ns AS to_ns
    FROM cuts AS c
    JOIN wholes AS w ON w.process = c.process AND w.fetch_id = c.fetch_id
),
pieces AS (
    SELECT 'worker start' AS kind, wait_id, NULL AS fetch_id, NULL AS save_id, main, process, thread,
        start_ns AS from_ns, begun_ns AS to_ns
    FROM owed
    UNION ALL
    SELECT 'gap', wait_id, NULL, NULL, main, process, thread, gap_from_ns, gap_to_ns FROM met
    UNION ALL
    SELECT 'fetch', wait_id, fetch_id, NULL, main, process, thread, from_ns, to_ns FROM met
    UNION ALL
    SELECT CASE WHEN is_fetched THEN 'hand-over' ELSE 'unknown' END, wait_id, NULL, NULL, main,
        process, thread, ready_ns, end_ns
    FROM owed
    UNION ALL
    SELECT
        CASE
            WHEN is_start THEN 'loader start'
            WHEN made_by IS NOT NULL THEN 'made'
            WHEN is_inferred THEN 'pool'
            WHEN index IS NULL AND is_finished THEN 'pass end'
            WHEN is_pooled THEN 'pool'
            ELSE 'unknown'
        END,
        wait_id,
        NULL,
        NULL,
        main,
        main,
        coalesce(made_by, main_thread),
        start_ns,
        end_ns
    FROM candidates
    WHERE fetch_id IS NULL
    UNION ALL
    SELECT CASE WHEN fetch_id > 0 THEN 'fetch' ELSE 'step' END, NULL, nullif(fetch_id, 0), NULL, main,
        process, thread, from_ns, to_ns
    FROM free
    UNION ALL
    SELECT 'checkpoint', NULL, NULL, save_id, process, process, thread, start_ns, end_ns
    FROM saves
    WHERE blocks
)
SELECT
    row_number() OVER (ORDER BY p.process, p.thread, p.from_ns, p.to_ns, p.wait_id) AS stretch_id,
    p.kind,
    p.wait_id,
    p.fetch_id,
    p.save_id,
    p.main,
    p.process,
    p.thread,
    p.from_ns,
    p.to_ns,
    coalesce(w.in_wall, p.save_id IS NOT NULL OR p.kind = 'step') AS is_blocking
FROM pieces AS p
LEFT JOIN waits AS w ON w.wait_id = p.wait_id
WHERE p.to_ns > p.from_ns
