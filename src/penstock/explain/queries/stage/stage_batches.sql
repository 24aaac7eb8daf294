-- stage_batches: batches fetched by workers, in the order of their numbers, with the wait for each: the
-- record of a pipeline, so that a replay can run the pipeline again with other times.
--   pass       the loader's iterator of a main process: one pass over the data
--   worker     number of the fetching thread, within the pass
--   asked_ns, got_ns  when the step loop asked for the batch, and got the batch
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
