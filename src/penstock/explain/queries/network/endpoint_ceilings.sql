-- Bandwidth and request rate of servers, measured by `penstock ceiling URL` (the latest measurement), by endpoint,
-- size of a request and number of requests at once.
SELECT
    mount AS endpoint,
    request_bytes,
    CAST(threads AS BIGINT) AS at_once,
    arg_max(bandwidth_bps, unix_ns) AS bandwidth_bps,
    arg_max(calls_hz, unix_ns) AS requests_hz
FROM ceilings
WHERE kind = 'remote'
GROUP BY mount, request_bytes, threads
ORDER BY mount, request_bytes, threads
