-- fetches: one row per batch fetched by a worker, or, without workers, by the main process.
--   main       the process that receives the batch
--   worker_ns  see roles; NULL where the main process fetches
--   cpu_ns     CPU time of the thread inside the fetch; NULL while in flight
--   delay_ns   time of the thread in the run queue inside the fetch; NULL: not measured
--   has_batch  false: the fetch found the end of an IterableDataset
WITH told AS (
    SELECT
        *,
        lead(CASE WHEN name = 'fetch delay' THEN b END) OVER (
            PARTITION BY process, thread, index ORDER BY start_ns
        ) AS delay_ns,
        lead(name) OVER fetched AS next_name,
        lead(name, 2) OVER fetched AS second_name,
        last_value(CASE WHEN name = 'fetch' THEN a END IGNORE NULLS)
            OVER (PARTITION BY process, thread ORDER BY start_ns) AS iterator
    FROM timed_spans
    WHERE kind = 'span' AND name IN ('fetch', 'fetch delay', 'fetch end')
    WINDOW fetched AS (PARTITION BY process, thread, index ORDER BY start_ns)
)
SELECT
    row_number() OVER (ORDER BY t.process, t.thread, t.start_ns) AS fetch_id,
    t.process,
    t.thread,
    coalesce(r.main, t.process) AS main,
    t.iterator,
    t.index,
    t.start_ns,
    t.end_ns,
    r.worker_ns,
    t.b AS cpu_ns,
    t.delay_ns,
    NOT coalesce(
        t.next_name = 'fetch end' OR (t.next_name = 'fetch delay' AND t.second_name = 'fetch end'), false
    ) AS has_batch
FROM told AS t
JOIN roles AS r ON r.process = t.process
WHERE t.name = 'fetch' AND t.is_outermost
