-- stage_objects: objects fetched by the run from remote storage, a row per endpoint, bucket and path; most bytes
-- first.  Sums of requests (past the first 50,000 of a process) have no path and no row.
--   size_bytes     of the whole object; if the object's size is unknown, the sum over the distinct ranges
--   fetched_bytes  bytes of all answered GETs;  requests: including failed tries;  processes: number of processes
--                  that requested the object
--   request_s      time in requests, and back-off before retries, all threads together
WITH asked AS (
    SELECT
        endpoint, bucket, path, process, range_offset_bytes, range_bytes, object_bytes, duration_ns, slept_ns,
        CASE WHEN method = 'GET' AND status BETWEEN 200 AND 299 THEN received_bytes ELSE 0 END AS got_bytes
    FROM request_tries
    WHERE requests = 1 AND path IS NOT NULL AND endpoint IS NOT NULL AND operation = 'GET'
),
parts AS (
    SELECT
        endpoint, bucket, path, max(got_bytes) AS part_bytes, sum(got_bytes) AS got_bytes, count(*) AS n,
        max(object_bytes) AS object_bytes, sum(duration_ns + slept_ns) AS ns
    FROM asked
    GROUP BY endpoint, bucket, path, range_offset_bytes, range_bytes
),
askers AS (
    SELECT endpoint, bucket, path, count(DISTINCT process) AS processes FROM asked GROUP BY endpoint, bucket, path
),
objects AS (
    SELECT
        endpoint, bucket, path,
        coalesce(max(object_bytes), sum(part_bytes)) AS size_bytes,
        sum(got_bytes) AS fetched_bytes,
        sum(n) AS requests,
        sum(ns) / 1e9 AS request_s
    FROM parts
    GROUP BY endpoint, bucket, path
)
SELECT
    o.endpoint,
    o.bucket,
    o.path,
    CAST(o.size_bytes AS BIGINT) AS size_bytes,
    CAST(o.fetched_bytes AS BIGINT) AS fetched_bytes,
    CAST(o.requests AS BIGINT) AS requests,
    CAST(a.processes AS BIGINT) AS processes,
    o.request_s
FROM objects AS o
JOIN askers AS a
    ON a.endpoint = o.endpoint AND a.bucket IS NOT DISTINCT FROM o.bucket AND a.path = o.path
WHERE o.fetched_bytes > 0
ORDER BY o.fetched_bytes DESC, o.endpoint, o.path
