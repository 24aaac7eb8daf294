-- stage_batches: batches fetched by workers, in the order of the batch numbers, with the step loop's wait for each
-- batch.  A replay runs the recorded pipeline again with other times.
--   pass       number of the epoch: each iterator of a main process's loader serves an epoch
--   worker     number of the fetching thread, within the epoch
--   asked_ns, got_ns  when the step loop asked for the batch, and received the batch
SELECT
    dense_rank() OVER (ORDER BY f.main, f.iterator) AS pass,
    f.index AS batch,
    dense_rank() OVER (PARTITION BY f.main, f.iterator ORDER BY f.process, f.thread) AS worker,
    f.fetch_id,
    f.start_ns,
    f.end_ns,
    w.start_ns AS asked_ns,
    w.end_ns AS got_ns,
    w.in_wall
FROM owed_fetches AS o
JOIN fetches AS f ON f.fetch_id = o.fetch_id
JOIN waits AS w ON w.wait_id = o.wait_id
WHERE f.process <> f.main AND w.is_finished AND f.end_ns IS NOT NULL AND f.index IS NOT NULL
ORDER BY pass, batch
