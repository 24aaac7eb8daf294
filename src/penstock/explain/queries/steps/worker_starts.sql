-- The start of loaders' workers: means over all started workers.
--   workers    started workers; fresh: workers that are programs of their own (spawn, forkserver) and import
--              modules again; again: workers started after the training had begun
--   born_s     from the start of a worker's process to the start of the worker's loop; import_s: the part of born_s
--              in imports; setup_s: the time after born_s, until the worker first asked for work (worker_init_fn,
--              the data set's iterator)
WITH loops AS (
    SELECT process, min(start_ns) AS ns FROM spans WHERE kind = 'span' AND name = 'worker' GROUP BY process
),
imported AS (
    SELECT process, sum(end_ns - start_ns) AS ns FROM imports WHERE NOT is_main GROUP BY process
),
started AS (
    SELECT
        r.process,
        l.start_ns,
        o.ns - l.start_ns AS born_ns,
        least(coalesce(i.ns, 0), o.ns - l.start_ns) AS import_ns,
        greatest(0, r.worker_ns - o.ns) AS setup_ns,
        -- A forked worker starts the loop at once; a worker with a command of its own first imports the parent's
        -- modules again.
        p.command <> coalesce(q.command, '') AS is_fresh,
        l.start_ns >= m.first_ns AS is_again
    FROM roles AS r
    JOIN lives AS l ON l.process = r.process
    JOIN loops AS o ON o.process = r.process
    JOIN mains AS m ON m.process = r.main
    LEFT JOIN imported AS i ON i.process = r.process
    LEFT JOIN processes AS p ON p.process = r.process
    LEFT JOIN processes AS q ON q.process = r.main
    WHERE r.role = 'worker'
)
SELECT
    count(*) AS workers,
    count(*) FILTER (WHERE is_fresh) AS fresh,
    count(*) FILTER (WHERE is_again) AS again,
    coalesce(avg(born_ns), 0) / 1e9 AS born_s,
    coalesce(avg(import_ns), 0) / 1e9 AS import_s,
    coalesce(avg(setup_ns), 0) / 1e9 AS setup_s
FROM started
