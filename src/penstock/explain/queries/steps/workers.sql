-- Workers of the loader, one row per worker (the first 1,000): the worker's fetches, and the step loop's waits for
-- the worker's batches.
--   fetches, fetch_s  batches fetched, and the time in the fetches
--   team      the largest number of workers that served an epoch together: loaders with different teams are
--             different loaders
--   life_s    from the start of the worker's loop to the worker's last action
--   owed_s    data wait in the wall time for the worker's batches; owed_fetch_s: the part of owed_s with the worker
--             in a fetch, neither starting nor asked too late
--   first_fetch_s  duration of the first fetch, which may open the data set; delay_s: time without a CPU in
--             all fetches but the first; NULL: not measured
--   waited_s  data wait in the wall time for the epochs served by the worker; busy_s: the part of waited_s with the
--             worker in a fetch, even if another worker owed the batch
WITH fetched AS (
    SELECT
        process,
        any_value(main) AS main,
        count(*) FILTER (WHERE has_batch) AS fetches,
        sum(end_ns - start_ns) AS ns,
        sum(cpu_ns) AS cpu_ns,
        min_by(end_ns - start_ns, start_ns) AS first_ns,
        sum(delay_ns) - coalesce(min_by(delay_ns, start_ns), 0) AS delay_ns,
        max(end_ns) AS last_ns
    FROM fetches
    WHERE worker_ns IS NOT NULL AND main IN (SELECT process FROM mains)
    GROUP BY process
),
-- before_ns: the sum of the main process's earlier waits at the start of each wait.  Between two waits the sum is
-- constant.
summed AS (
    SELECT
        process AS main,
        iterator,
        start_ns,
        end_ns,
        sum(end_ns - start_ns) OVER (PARTITION BY process, iterator ORDER BY start_ns)
            - (end_ns - start_ns) AS before_ns
    FROM waits
    WHERE in_wall
),
ends AS (
    SELECT process, main, iterator, unnest([start_ns, end_ns]) AS ns, unnest([-1, 1]) AS sign
    FROM fetches
    WHERE worker_ns IS NOT NULL
),
busy AS (
    SELECT
        e.process,
        sum(e.sign * (s.before_ns + least(e.ns, s.end_ns) - s.start_ns)) AS ns
    FROM ends AS e
    ASOF JOIN summed AS s ON s.main = e.main AND s.iterator = e.iterator AND s.start_ns <= e.ns
    GROUP BY e.process
),
waited AS (
    SELECT f.process, sum(s.end_ns - s.start_ns) AS ns
    FROM summed AS s
    JOIN (SELECT DISTINCT process, main, iterator FROM fetches WHERE worker_ns IS NOT NULL) AS f
        ON f.main = s.main AND f.iterator = s.iterator
    GROUP BY f.process
),
teams AS (
    SELECT f.process, max(t.workers) AS workers
    FROM fetches AS f
    JOIN (
        SELECT main, iterator, count(DISTINCT process) AS workers
        FROM fetches
        WHERE worker_ns IS NOT NULL
        GROUP BY main, iterator
    ) AS t ON t.main = f.main AND t.iterator = f.iterator
    WHERE f.worker_ns IS NOT NULL
    GROUP BY f.process
),
owed AS (
    SELECT process, sum(to_ns - from_ns) AS ns,
        sum(to_ns - from_ns) FILTER (WHERE kind = 'fetch') AS fetch_ns
    FROM stretches
    WHERE wait_id IS NOT NULL AND is_blocking AND process <> main
    GROUP BY process
)
SELECT
    f.main,
    p.rank,
    r.worker,
    coalesce(g.workers, 1) AS team,
    f.process,
    (SELECT any_value(q.pid) FROM processes AS q WHERE q.process = f.process) AS pid,
    f.fetches,
    f.ns / 1e9 AS fetch_s,
    f.cpu_ns / 1e9 AS cpu_s,
    (f.last_ns - r.worker_ns) / 1e9 AS life_s,
    f.first_ns / 1e9 AS first_fetch_s,
    f.delay_ns / 1e9 AS delay_s,
    coalesce(o.ns, 0) / 1e9 AS owed_s,
    coalesce(o.fetch_ns, 0) / 1e9 AS owed_fetch_s,
    coalesce(w.ns, 0) / 1e9 AS waited_s,
    greatest(0, coalesce(b.ns, 0)) / 1e9 AS busy_s
FROM fetched AS f
JOIN roles AS r ON r.process = f.process
LEFT JOIN teams AS g ON g.process = f.process
LEFT JOIN owed AS o ON o.process = f.process
LEFT JOIN waited AS w ON w.process = f.process
LEFT JOIN busy AS b ON b.process = f.process
LEFT JOIN processes AS p ON p.process = f.main
ORDER BY f.main, r.worker, f.process
LIMIT 1000
