-- Opens of files of which a tier holds a copy, by what came of them.
--   tier       the name of the tier; NULL: its log does not name it
--   outcome    served from the copy; or why the original was opened: changed, dropped, absent, gone,
--              damaged, direct, denied; written: opened to be written, the copy is dropped; lost: the
--              tier was not there when the process began, so all its opens of data files are told
--   opens      calls, exact also past the trace budget
--   files, read_bytes, time_s  of the copies: what was read, and time in calls; of POSIX and STDIO, for
--              each file, the layer that read more; NULL: not served
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
