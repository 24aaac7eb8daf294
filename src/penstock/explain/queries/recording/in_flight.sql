-- File calls that had not returned at the end of the process's log: the ten longest, longest first.
--   s     from the call to the end of the process's known life
SELECT
    o.op,
    f.path,
    CASE WHEN w.process IS NOT NULL THEN 'worker' ELSE 'process' END AS role,
    p.pid,
    (l.end_ns - e.start_ns) / 1e9 AS s
FROM file_calls AS e
JOIN ops AS o ON o.op_number = e.op_number
JOIN lives AS l ON l.process = e.process
JOIN processes AS p ON p.process = e.process
LEFT JOIN files AS f ON f.file = e.file
LEFT JOIN (SELECT DISTINCT process FROM spans WHERE name = 'worker') AS w ON w.process = e.process
WHERE e.duration_ns IS NULL
ORDER BY s DESC, f.path
LIMIT 10
