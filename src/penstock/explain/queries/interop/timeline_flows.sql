-- The start of a worker's fetch of a batch, and the start of the data wait for the batch.
SELECT
    f.process AS fetch_process,
    f.thread AS fetch_thread,
    f.start_ns AS fetch_ns,
    w.process AS wait_process,
    w.thread AS wait_thread,
    w.start_ns AS wait_ns
FROM owed_fetches AS o
JOIN fetches AS f ON f.fetch_id = o.fetch_id
JOIN waits AS w ON w.wait_id = o.wait_id
WHERE f.process <> w.process OR f.thread <> w.thread
ORDER BY o.wait_id
