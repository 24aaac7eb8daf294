-- request_latencies: durations of requests to the four endpoints with the most time in requests, in octave bins of
-- nanoseconds: 2^exponent <= ns < 2^(exponent + 1).  Failed tries are included.
--   what          'first byte': until the first byte of the answer; 'whole': until the program had read the body
--   p50_s, p99_s  quantiles of the endpoint, equal in each row
WITH chosen AS (
    SELECT endpoint, sum(duration_ns) AS busy_ns
    FROM request_tries
    WHERE requests = 1 AND endpoint IS NOT NULL
    GROUP BY endpoint
    ORDER BY busy_ns DESC, endpoint
    LIMIT 4
),
timed AS (
    SELECT r.endpoint, c.busy_ns, 'first byte' AS what, greatest(1, r.first_byte_ns) AS ns
    FROM request_tries AS r
    JOIN chosen AS c ON c.endpoint = r.endpoint
    WHERE r.requests = 1 AND r.first_byte_ns IS NOT NULL
    UNION ALL
    SELECT r.endpoint, c.busy_ns, 'whole', greatest(1, r.duration_ns)
    FROM request_tries AS r
    JOIN chosen AS c ON c.endpoint = r.endpoint
    WHERE r.requests = 1
),
placed AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY endpoint, what ORDER BY ns) AS place,
        count(*) OVER (PARTITION BY endpoint, what) AS all_n
    FROM timed
),
quantiles AS (
    SELECT
        endpoint,
        what,
        min(ns) FILTER (WHERE place >= 0.5 * all_n) / 1e9 AS p50_s,
        min(ns) FILTER (WHERE place >= 0.99 * all_n) / 1e9 AS p99_s
    FROM placed
    GROUP BY endpoint, what
)
SELECT
    t.endpoint,
    t.what,
    CAST(floor(log2(t.ns)) AS INTEGER) AS exponent,
    count(*) AS n,
    min(q.p50_s) AS p50_s,
    min(q.p99_s) AS p99_s
FROM timed AS t
JOIN quantiles AS q ON q.endpoint = t.endpoint AND q.what = t.what
GROUP BY t.endpoint, t.busy_ns, t.what, floor(log2(t.ns))
ORDER BY t.busy_ns DESC, t.endpoint, t.what, floor(log2(t.ns))
