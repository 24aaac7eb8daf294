-- Epochs of a loader; a row combines the n-th epoch of all main processes (the first 200 epochs).
--   workers, batch_size  NULL: the epoch has not ended
--   batches     batches that reached the loop; without a recorded wait, fetched batches
--   data_wait_s  time in the epoch's waits, the first batch included; a mean over main processes
--   first_wait_s  the part in the wait for the epoch's first batch: worker start, empty queues
--   read_bytes  bytes of data files, and of files that the job wrote, read by the fetching thread and its helpers
--               during fetches; NULL: no recorded fetch
WITH loaders AS (
    SELECT
        s.process,
        s.index AS iterator,
        row_number() OVER (PARTITION BY s.process ORDER BY s.start_ns) AS epoch,
        s.a AS workers,
        s.b AS batch_size,
        s.start_ns,
        s.end_ns
    FROM timed_spans AS s
    WHERE s.kind = 'span' AND s.name = 'loader' AND s.process IN (SELECT process FROM mains)
),
waited AS (
    SELECT
        process,
        iterator,
        count(index) AS waits,
        sum(end_ns - start_ns) AS ns,
        arg_min(end_ns - start_ns, start_ns) FILTER (WHERE NOT is_start) AS first_ns
    FROM waits
    GROUP BY process, iterator
),
fetched AS (
    SELECT main, iterator, count(*) FILTER (WHERE has_batch) AS fetches
    FROM fetches
    GROUP BY main, iterator
),
read AS (
    SELECT f.main, f.iterator, sum(c.data_bytes) AS bytes
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    JOIN fetches AS f ON f.fetch_id = s.fetch_id
    WHERE c.op_group = 'read'
    GROUP BY f.main, f.iterator
)
SELECT
    o.epoch,
    min(o.start_ns) / 1e9 AS start_s,
    max(o.end_ns - o.start_ns) / 1e9 AS duration_s,
    max(o.workers) AS workers,
    max(o.batch_size) AS batch_size,
    CAST(sum(coalesce(nullif(w.waits, 0), f.fetches, 0)) AS BIGINT) AS batches,
    sum(coalesce(w.ns, 0)) / 1e9 / count(*) AS data_wait_s,
    avg(w.first_ns) / 1e9 AS first_wait_s,
    CAST(CASE WHEN count(f.fetches) > 0 THEN sum(coalesce(r.bytes, 0)) END AS BIGINT) AS read_bytes
FROM loaders AS o
LEFT JOIN waited AS w ON w.process = o.process AND w.iterator = o.iterator
LEFT JOIN fetched AS f ON f.main = o.process AND f.iterator = o.iterator
LEFT JOIN read AS r ON r.main = o.process AND r.iterator = o.iterator
GROUP BY o.epoch
ORDER BY o.epoch
LIMIT 200
