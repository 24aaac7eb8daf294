-- HTTP requests, a row per endpoint, bucket and operation, as the adapters of clients recorded the requests; ordered by
-- time, longest first.
--   requests     tries included; unanswered: ended in an error before an answer; ok, moved, refused, broken: status
--                200-299, 300-399, 400-499, 500 and more; throttled: 429 or 503; partial: body not read to the end
--   retries, backoff_s  tries after a failed try, and the time slept before retries: see request_tries
--   lost_s       duration of failed tries, plus backoff_s
--   busy_s       sum of durations; most_at_once: the largest number of requests under way at once in the job
--   first_byte_p50_s …  quantiles of the requests recorded in rows of their own (not of sums of requests)
--   is_operation true: some recorded requests are operations of a client whose inner requests and retries are not
--                recorded
WITH edges AS (
    SELECT endpoint, bucket, operation, start_ns AS at_ns, 1 AS step FROM request_tries WHERE requests = 1
    UNION ALL
    SELECT endpoint, bucket, operation, end_ns, -1 FROM request_tries WHERE requests = 1
),
under_way AS (
    SELECT
        endpoint, bucket, operation,
        sum(step) OVER (PARTITION BY endpoint, bucket, operation ORDER BY at_ns, step) AS at_once
    FROM edges
),
most AS (
    SELECT endpoint, bucket, operation, max(at_once) AS most_at_once FROM under_way GROUP BY endpoint, bucket, operation
),
placed AS (
    SELECT
        endpoint, bucket, operation, duration_ns, first_byte_ns, received_bytes,
        row_number() OVER (PARTITION BY endpoint, bucket, operation ORDER BY duration_ns) AS by_duration,
        row_number() OVER (PARTITION BY endpoint, bucket, operation ORDER BY first_byte_ns NULLS LAST) AS by_first_byte,
        count(*) OVER (PARTITION BY endpoint, bucket, operation) AS n,
        count(first_byte_ns) OVER (PARTITION BY endpoint, bucket, operation) AS n_answered
    FROM request_tries
    WHERE requests = 1
),
quantiles AS (
    SELECT
        endpoint, bucket, operation,
        min(first_byte_ns) FILTER (WHERE by_first_byte >= 0.5 * n_answered) / 1e9 AS first_byte_p50_s,
        min(first_byte_ns) FILTER (WHERE by_first_byte >= 0.99 * n_answered) / 1e9 AS first_byte_p99_s,
        min(duration_ns) FILTER (WHERE by_duration >= 0.5 * n) / 1e9 AS duration_p50_s,
        min(duration_ns) FILTER (WHERE by_duration >= 0.99 * n) / 1e9 AS duration_p99_s,
        median(received_bytes) AS bytes_p50
    FROM placed
    GROUP BY endpoint, bucket, operation
)
SELECT
    c.endpoint,
    c.bucket,
    c.operation,
    CAST(sum(c.requests) AS BIGINT) AS requests,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.status IS NULL), 0) AS BIGINT) AS unanswered,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.status BETWEEN 200 AND 299), 0) AS BIGINT) AS ok,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.status BETWEEN 300 AND 399), 0) AS BIGINT) AS moved,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.status BETWEEN 400 AND 499), 0) AS BIGINT) AS refused,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.status >= 500), 0) AS BIGINT) AS broken,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.status IN (429, 503)), 0) AS BIGINT) AS throttled,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.is_part), 0) AS BIGINT) AS partial,
    CAST(coalesce(sum(c.requests) FILTER (WHERE c.is_again), 0) AS BIGINT) AS retries,
    sum(c.slept_ns) / 1e9 AS backoff_s,
    (sum(c.slept_ns) + coalesce(sum(c.duration_ns) FILTER (WHERE c.is_failed), 0)) / 1e9 AS lost_s,
    CAST(sum(c.received_bytes) AS BIGINT) AS received_bytes,
    CAST(coalesce(sum(c.sent_bytes), 0) AS BIGINT) AS sent_bytes,
    sum(c.duration_ns) / 1e9 AS busy_s,
    min(q.first_byte_p50_s) AS first_byte_p50_s,
    min(q.first_byte_p99_s) AS first_byte_p99_s,
    min(q.duration_p50_s) AS duration_p50_s,
    min(q.duration_p99_s) AS duration_p99_s,
    min(q.bytes_p50) AS bytes_p50,
    median(c.object_bytes) AS object_bytes_p50,
    CAST(count(DISTINCT c.path) AS BIGINT) AS paths,
    CAST(count(DISTINCT c.process) AS BIGINT) AS processes,
    CAST(coalesce(min(m.most_at_once), 0) AS BIGINT) AS most_at_once,
    bool_or(c.is_operation) AS is_operation
FROM request_tries AS c
LEFT JOIN quantiles AS q
    ON q.endpoint IS NOT DISTINCT FROM c.endpoint AND q.bucket IS NOT DISTINCT FROM c.bucket
    AND q.operation IS NOT DISTINCT FROM c.operation
LEFT JOIN most AS m
    ON m.endpoint IS NOT DISTINCT FROM c.endpoint AND m.bucket IS NOT DISTINCT FROM c.bucket
    AND m.operation IS NOT DISTINCT FROM c.operation
GROUP BY c.endpoint, c.bucket, c.operation
ORDER BY sum(c.duration_ns) DESC, c.endpoint, c.bucket, c.operation
LIMIT 100
