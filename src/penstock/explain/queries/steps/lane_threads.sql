-- lane_threads: threads that made file calls or for which the step loop waited, with the timeline's lane of
-- each thread; only the 256 lanes with the most time, training threads first.
--   lane       a thread; of workers started anew in each epoch, a lane gathers the n-th threads of all workers
--              with the same worker number
--   loader     number of the loader in the main process, ordered by the start of the loader's first worker;
--              NULL: no loader.  Workers belong to different loaders if their epochs differ in the number of
--              workers or the batch size, or if a worker lives mostly beside another worker of the same number
--   nth        rank among the threads of the process, the first thread before the others
--   all_lanes  number of all lanes, including lanes past the 256
WITH busy AS (
    SELECT process, thread, sum(call_ns) AS ns FROM binned GROUP BY process, thread
    UNION ALL
    SELECT process, thread, sum(to_ns - from_ns)
    FROM stretches
    WHERE is_blocking AND kind <> 'step'
    GROUP BY process, thread
),
sums AS (
    SELECT process, thread, sum(ns) AS ns FROM busy GROUP BY process, thread
),
passes AS (
    SELECT
        process AS main,
        index AS iterator,
        CAST(any_value(a) AS VARCHAR) || ' ' || CAST(any_value(b) AS VARCHAR) AS shape
    FROM timed_spans
    WHERE kind = 'span' AND name = 'loader' AND is_finished
    GROUP BY process, index
),
-- The shape of the first epoch of a worker.  An unfinished epoch has no known shape: then the shape of
-- the main process's other epochs counts, if all are alike.
shaped AS (
    SELECT f.process, coalesce(any_value(p.shape), any_value(o.shape), '') AS shape
    FROM (SELECT process, main, min(iterator) AS iterator FROM fetches GROUP BY process, main) AS f
    LEFT JOIN passes AS p ON p.main = f.main AND p.iterator = f.iterator
    LEFT JOIN (
        SELECT main, min(shape) AS shape FROM passes GROUP BY main HAVING min(shape) = max(shape)
    ) AS o ON o.main = f.main
    GROUP BY f.process
),
lived AS (
    SELECT
        r.process,
        r.main,
        r.worker,
        coalesce(s.shape, '') AS shape,
        l.start_ns,
        coalesce(max(l.end_ns) OVER (
            PARTITION BY r.main, r.worker, s.shape ORDER BY l.start_ns, l.process
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) - l.start_ns > (l.end_ns - l.start_ns) / 2, false) AS is_beside
    FROM roles AS r
    JOIN lives AS l ON l.process = r.process
    LEFT JOIN shaped AS s ON s.process = r.process
    WHERE r.role = 'worker' AND r.worker IS NOT NULL
),
loaders AS (
    SELECT
        main,
        shape,
        is_beside,
        row_number() OVER (PARTITION BY main ORDER BY min(start_ns), shape, is_beside) AS loader
    FROM lived
    GROUP BY main, shape, is_beside
),
workers AS (
    SELECT v.process, v.main, v.worker, o.loader
    FROM lived AS v
    JOIN loaders AS o
        ON o.main = v.main AND o.shape = v.shape AND o.is_beside = v.is_beside
),
known AS (
    SELECT
        s.process,
        s.thread,
        CASE WHEN w.process IS NULL THEN s.process ELSE -1 - w.main END AS owner,
        w.worker,
        w.loader,
        row_number() OVER (
            PARTITION BY s.process ORDER BY coalesce(t.is_main, false) DESC, s.thread
        ) AS nth,
        CASE
            WHEN r.role = 'main' AND r.thread = s.thread THEN 'main'
            WHEN r.role = 'main' THEN 'other'
            ELSE r.role
        END AS role,
        p.rank,
        s.ns
    FROM sums AS s
    JOIN roles AS r ON r.process = s.process
    JOIN processes AS p ON p.process = s.process
    LEFT JOIN workers AS w ON w.process = s.process
    LEFT JOIN threads AS t ON t.process = s.process AND t.thread = s.thread
),
summed AS (
    SELECT
        owner,
        worker,
        loader,
        nth,
        any_value(role) AS role,
        min(rank) AS rank,
        min(process) AS process,
        sum(ns) AS ns
    FROM known
    GROUP BY owner, worker, loader, nth
),
largest AS (
    SELECT owner, worker, loader, nth, role, rank, process, count(*) OVER () AS all_lanes
    FROM summed
    QUALIFY row_number() OVER (ORDER BY role = 'main' DESC, ns DESC, process, nth) <= 256
),
lanes AS (
    SELECT
        *,
        row_number() OVER (
            ORDER BY list_position(['main', 'worker', 'other'], role), rank, worker, loader, process, nth
        ) AS lane
    FROM largest
)
SELECT l.lane, k.process, k.thread, l.role, k.worker, l.loader, l.nth, l.rank, l.all_lanes
FROM known AS k
JOIN lanes AS l
    ON l.owner = k.owner AND l.worker IS NOT DISTINCT FROM k.worker
        AND l.loader IS NOT DISTINCT FROM k.loader
        AND l.nth = k.nth
