-- Clocks of several hosts, and the conversion of times to a common clock (penstock.runs.clocks).
--   how       reference, measured, steps; wall clock: unchanged
--   moved_s   added to the host's times
--   error_s   the largest remaining error of the host's times; NULL: not known
--   spread_s  the span in which the hosts' steps end, from the 10th to the 90th percentile
--   apart_s   the gap in the shown times between the lives of the host and of the reference host, from the last
--             sign of life of the earlier host to the first sign of life of the later host; NULL: the lives overlap
WITH told AS (
    SELECT string_split(value, chr(9)) AS words FROM notes WHERE key = 'clock'
),
named AS (
    SELECT
        words[1] AS host,
        words[2] AS how,
        TRY_CAST(words[3] AS BIGINT) / 1e9 AS moved_s,
        TRY_CAST(words[4] AS BIGINT) / 1e9 AS error_s,
        TRY_CAST(words[5] AS BIGINT) / 1e9 AS spread_s,
        TRY_CAST(words[6] AS BIGINT) AS steps
    FROM told
),
lived AS (
    SELECT host, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM lives GROUP BY host
),
reference AS (
    SELECT l.* FROM lived AS l WHERE l.host = (SELECT any_value(host) FROM named WHERE how = 'reference')
)
SELECT
    n.*,
    CASE
        WHEN l.start_ns > r.end_ns THEN (l.start_ns - r.end_ns) / 1e9
        WHEN r.start_ns > l.end_ns THEN (r.start_ns - l.end_ns) / 1e9
    END AS apart_s
FROM named AS n
LEFT JOIN lived AS l ON l.host = n.host
LEFT JOIN reference AS r ON true
ORDER BY n.how <> 'reference', n.host
LIMIT 1000
