-- request_tries: the requests, with the outcome of each try.
--   is_failed  no answer, an answer lost in mid-body, or status 408, 429, or 500 and more
--   is_again   a try after a failed try.  If the client does not count tries: a request of the same thread for
--              the same method, path and range, at most a minute later
--   slept_ns   time before the repeated try: the client's back-off, or the time since the failed try
WITH tried AS (
    SELECT
        *,
        error IS NOT NULL OR coalesce(status, 0) IN (408, 429) OR coalesce(status, 0) >= 500 AS is_failed,
        start_ns + duration_ns AS end_ns
    FROM requests
),
followed AS (
    SELECT
        *,
        lag(is_failed) OVER again AS is_failed_before,
        start_ns - lag(end_ns) OVER again AS since_ns
    FROM tried
    WINDOW again AS (
        PARTITION BY process, thread, endpoint, method, path, range_offset_bytes, range_bytes ORDER BY start_ns, request
    )
),
judged AS (
    SELECT
        *,
        coalesce(
            attempt = 0 AND is_failed_before AND path IS NOT NULL AND since_ns BETWEEN 0 AND 60000000000, false
        ) AS is_uncounted
    FROM followed
)
SELECT
    *,
    attempt > 0 OR is_uncounted AS is_again,
    CASE WHEN is_uncounted THEN since_ns ELSE backoff_ns END AS slept_ns
FROM judged
