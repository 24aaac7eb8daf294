-- The requests of a timeline that overlap from_ns..to_ns, by thread and start.  Rows of summed requests are excluded.
--   first_byte_ns  ns until the first byte of the answer; slept_ns  the back-off before the request
SELECT
    process,
    thread,
    request,
    operation,
    endpoint,
    path,
    status,
    error,
    received_bytes,
    first_byte_ns,
    attempt,
    slept_ns,
    start_ns,
    end_ns
FROM request_tries
WHERE requests = 1
    AND thread IS NOT NULL
    AND start_ns < $to_ns
    AND end_ns >= $from_ns
    AND process IN (SELECT process FROM timeline_family)
ORDER BY process, thread, start_ns, end_ns DESC, request
