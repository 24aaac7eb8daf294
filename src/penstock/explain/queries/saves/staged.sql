-- Opens of files with a copy on a tier, by outcome.
--   tier       the name of the tier; NULL: not in the log
--   outcome    served: the copy was opened; changed, dropped, absent, gone, damaged, direct, denied: the reason why
--              the original was opened; written: the file was opened to be written, and the copy is dropped;
--              lost: the tier was missing when the process began, and all the process's opens of data files count
--   opens      calls, exact also past the trace budget
--   files, read_bytes, time_s  number of copies, bytes read and time in calls; counted for each file in the layer
--              (POSIX or STDIO) with more bytes; NULL: not served
WITH read AS (
    SELECT
        count(*) AS files,
        CAST(coalesce(sum(t.read_bytes), 0) AS BIGINT) AS read_bytes,
        coalesce(sum(t.time_s), 0) AS time_s
    FROM (
        SELECT file, max(read_bytes) AS read_bytes, arg_max(time_s, read_bytes) AS time_s
        FROM file_totals
        GROUP BY file
    ) AS t
    JOIN files AS f ON f.file = t.file
    WHERE f.served_from IN (SELECT value FROM notes WHERE key = 'tier')
)
SELECT
    (SELECT min(value) FROM notes WHERE key = 'tier') AS tier,
    s.outcome,
    CAST(sum(s.opens) AS BIGINT) AS opens,
    CASE WHEN s.outcome = 'served' THEN any_value(r.files) END AS files,
    CASE WHEN s.outcome = 'served' THEN any_value(r.read_bytes) END AS read_bytes,
    CASE WHEN s.outcome = 'served' THEN any_value(r.time_s) END AS time_s
FROM staged AS s
CROSS JOIN read AS r
GROUP BY s.outcome
UNION ALL
SELECT NULL, 'lost', CAST(coalesce(sum(c.calls), 0) AS BIGINT), NULL, NULL, NULL
FROM (SELECT DISTINCT process FROM notes WHERE key = 'tier lost') AS l
LEFT JOIN (
    SELECT c.process, sum(c.calls - c.errors) AS calls
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    JOIN files AS f ON f.file = c.file
    WHERE o.op IN ('open', 'fopen', 'freopen') AND f.path_class = 'data'
    GROUP BY c.process
) AS c ON c.process = l.process
HAVING count(l.process) > 0
ORDER BY outcome <> 'served', opens DESC, outcome
