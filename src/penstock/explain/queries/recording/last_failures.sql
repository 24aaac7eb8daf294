-- For each process with an exit status above 0: the latest failed call on data or output within the ten seconds before
-- the end, as a possible cause.  A missing file is also an error.  Excluded: EAGAIN, EEXIST, ENOTTY, and failures of
-- access, stat, lstat, readlink and lseek.
SELECT
    p.process,
    arg_max(o.op, e.start_ns) AS op,
    CAST(arg_max(e.errno, e.start_ns) AS INTEGER) AS errno,
    arg_max(f.path, e.start_ns) AS path,
    (any_value(l.end_ns) - max(e.start_ns)) / 1e9 AS before_s
FROM processes AS p
JOIN lives AS l ON l.process = p.process
JOIN file_calls AS e ON e.process = p.process
JOIN ops AS o ON o.op_number = e.op_number
JOIN files AS f ON f.file = e.file
WHERE p.status > 0 AND e.errno > 0 AND e.path_class IN ('data', 'output')
    AND e.errno NOT IN (11, 17, 25) AND o.op NOT IN ('access', 'stat', 'lstat', 'readlink', 'lseek')
    AND e.start_ns >= l.end_ns - 10000000000
GROUP BY p.process
ORDER BY p.process
LIMIT 100
