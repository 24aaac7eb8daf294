-- backoffs: the time between a failed try and the retry, by thread: a sleep in this time is the client's back-off.
-- Not known for clients with unrecorded inner retries, and for rows with the sum of several requests.
--   to_ns  the start of the retry; for overlapping retries of a thread (an event loop): the latest start so far
WITH tried AS (
    SELECT
        process, thread, endpoint, start_ns, is_again, slept_ns,
        lag(end_ns) OVER (
            PARTITION BY process, thread, endpoint, method, path, range_offset_bytes, range_bytes
            ORDER BY start_ns, request
        ) AS failed_ns,
        lag(is_failed) OVER (
            PARTITION BY process, thread, endpoint, method, path, range_offset_bytes, range_bytes
            ORDER BY start_ns, request
        ) AS is_after_failed
    FROM request_tries
    WHERE requests = 1 AND path IS NOT NULL AND thread IS NOT NULL AND NOT is_operation
)
SELECT
    process,
    thread,
    endpoint,
    failed_ns AS from_ns,
    max(start_ns) OVER (PARTITION BY process, thread ORDER BY failed_ns, start_ns) AS to_ns
FROM tried
WHERE is_again AND is_after_failed AND start_ns > failed_ns
    -- After a longer time, the preceding row is an earlier request: the failed try itself has no row.
    AND start_ns - failed_ns <= slept_ns + 60000000000
