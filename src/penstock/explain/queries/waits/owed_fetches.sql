-- owed_fetches: the awaited fetch of each data wait: the latest fetch of the wait's loader iterator and batch
-- number, begun before the wait ended.  A wait has no row if no fetch was recorded, or if the fetching process
-- was paused in a part of the wait and recorded nothing.
SELECT w.wait_id, f.fetch_id
FROM waits AS w
JOIN fetches AS f
    ON f.main = w.process AND f.iterator = w.iterator AND f.index = w.index
        AND f.start_ns < w.end_ns
WHERE NOT EXISTS (
    SELECT 1 FROM pauses AS p
    WHERE p.process = f.process AND p.start_ns < w.end_ns AND p.end_ns > w.start_ns
)
QUALIFY row_number() OVER (PARTITION BY w.wait_id ORDER BY f.start_ns DESC) = 1
