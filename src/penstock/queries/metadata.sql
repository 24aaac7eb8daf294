-- Calls on data files and folders in the wall time that moved no data: open, close, stat, list, seek ...
-- Of workers those after their loop began: before it they import.
--   opens    of them opened a file; failed ended with an error (a path that is not there)
--   files    regular data files they were made on
WITH extent AS (
    SELECT min(first_ns) AS from_ns, max(last_ns) AS to_ns FROM mains
),
loops AS (
    SELECT process, min(start_ns) AS from_ns FROM spans WHERE kind = 'span' AND name = 'worker' GROUP BY process
)
SELECT
    count(*) AS calls,
    count(*) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen') AND e.errno = 0) AS opens,
    count(*) FILTER (WHERE e.errno <> 0) AS failed,
    count(DISTINCT CASE WHEN f.kind = 'regular' THEN e.file END) AS files,
    coalesce(sum(e.duration_ns), 0) / 1e9 AS time_s
FROM file_calls AS e
JOIN ops AS o ON o.op_number = e.op_number
JOIN files AS f ON f.file = e.file
CROSS JOIN extent AS x
LEFT JOIN loops AS l ON l.process = e.process
WHERE o.op_group = 'metadata' AND o.layer = 'posix' AND e.path_class = 'data'
    AND e.start_ns >= greatest(x.from_ns, l.from_ns) AND e.start_ns < x.to_ns
