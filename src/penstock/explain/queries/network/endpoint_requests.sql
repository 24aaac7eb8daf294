-- endpoint_requests: requests that began during the training, by endpoint; of clients with an adapter (see requests).
--   failed, retries  see request_tries; throttled: requests with status 429 or 503
--   lost_s       time in failed requests plus the time slept before further tries, summed over threads
--   asked_s      time in all requests, summed over threads; looks, look_s: number and time of LIST and HEAD requests
--   fetches      answered GETs of objects; fetch_s: time in fetches; objects: distinct objects, by path and range
--   again_bytes  fetched bytes without the largest fetch of each object; most_times, most_processes: the largest
--                number of fetches of an object, and of processes that fetched an object
--   first_s      median time to the first byte of fetches; slow: fetches with more than ten times the median;
--                slow_s: the time of slow fetches to the first byte, less the median
--   pieces       fetches of a range below 64 KiB from an object at least 64 times as large; piece_s: time in pieces
WITH training AS (
    SELECT min(first_ns) AS from_ns, max(last_ns) AS to_ns FROM mains
),
asked AS (
    SELECT
        r.endpoint,
        r.bucket,
        r.path,
        r.process,
        r.range_offset_bytes,
        r.range_bytes,
        r.object_bytes,
        r.status,
        r.operation IN ('LIST', 'HEAD') AS is_look,
        r.is_failed,
        r.method = 'GET' AND r.operation <> 'LIST' AND r.status BETWEEN 200 AND 299 AS is_fetch,
        r.is_again,
        r.requests,
        r.duration_ns,
        r.first_byte_ns,
        r.slept_ns,
        r.received_bytes
    FROM request_tries AS r
    CROSS JOIN training AS t
    WHERE r.endpoint IS NOT NULL AND r.start_ns >= t.from_ns AND r.start_ns < t.to_ns
),
fetched AS (
    SELECT
        endpoint,
        count(*) AS n,
        count(DISTINCT process) AS processes,
        sum(received_bytes) AS bytes,
        max(received_bytes) AS most_bytes
    FROM asked
    WHERE is_fetch AND path IS NOT NULL
    GROUP BY endpoint, bucket, path, range_offset_bytes, range_bytes
),
again AS (
    SELECT
        endpoint,
        count(*) AS objects,
        sum(bytes - most_bytes) AS again_bytes,
        max(n) AS most_times,
        max(processes) AS most_processes
    FROM fetched
    GROUP BY endpoint
),
usual AS (
    SELECT endpoint, median(first_byte_ns) AS first_ns
    FROM asked
    WHERE is_fetch AND requests = 1 AND first_byte_ns IS NOT NULL
    GROUP BY endpoint
)
SELECT
    a.endpoint,
    CAST(sum(a.requests) AS BIGINT) AS requests,
    CAST(coalesce(sum(a.requests) FILTER (WHERE a.is_failed), 0) AS BIGINT) AS failed,
    CAST(coalesce(sum(a.requests) FILTER (WHERE a.status IN (429, 503)), 0) AS BIGINT) AS throttled,
    CAST(coalesce(sum(a.requests) FILTER (WHERE a.is_again), 0) AS BIGINT) AS retries,
    (coalesce(sum(a.duration_ns) FILTER (WHERE a.is_failed), 0) + sum(a.slept_ns)) / 1e9 AS lost_s,
    sum(a.duration_ns) / 1e9 AS asked_s,
    CAST(coalesce(sum(a.requests) FILTER (WHERE a.is_look), 0) AS BIGINT) AS looks,
    coalesce(sum(a.duration_ns) FILTER (WHERE a.is_look), 0) / 1e9 AS look_s,
    CAST(coalesce(sum(a.requests) FILTER (WHERE a.is_fetch), 0) AS BIGINT) AS fetches,
    coalesce(sum(a.duration_ns) FILTER (WHERE a.is_fetch), 0) / 1e9 AS fetch_s,
    CAST(coalesce(sum(a.received_bytes) FILTER (WHERE a.is_fetch), 0) AS BIGINT) AS fetched_bytes,
    CAST(coalesce(any_value(g.objects), 0) AS BIGINT) AS objects,
    CAST(coalesce(any_value(g.again_bytes), 0) AS BIGINT) AS again_bytes,
    CAST(coalesce(any_value(g.most_times), 0) AS BIGINT) AS most_times,
    CAST(coalesce(any_value(g.most_processes), 0) AS BIGINT) AS most_processes,
    any_value(u.first_ns) / 1e9 AS first_s,
    count(*) FILTER (WHERE a.is_fetch AND a.requests = 1 AND a.first_byte_ns > 10 * u.first_ns) AS slow,
    coalesce(sum(a.first_byte_ns - u.first_ns) FILTER (
        WHERE a.is_fetch AND a.requests = 1 AND a.first_byte_ns > 10 * u.first_ns
    ), 0) / 1e9 AS slow_s,
    count(*) FILTER (
        WHERE a.is_fetch AND a.range_bytes < 65536 AND a.object_bytes >= 64 * a.range_bytes
    ) AS pieces,
    coalesce(sum(a.duration_ns) FILTER (
        WHERE a.is_fetch AND a.range_bytes < 65536 AND a.object_bytes >= 64 * a.range_bytes
    ), 0) / 1e9 AS piece_s
FROM asked AS a
LEFT JOIN again AS g ON g.endpoint = a.endpoint
LEFT JOIN usual AS u ON u.endpoint = a.endpoint
GROUP BY a.endpoint
ORDER BY sum(a.duration_ns) DESC, a.endpoint
LIMIT 100
