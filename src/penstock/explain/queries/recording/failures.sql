-- File calls that failed in earnest (failed_calls), by operation, error and file: most calls first (the
-- first 100).
--   first_s, last_s  when, since the run began
--   processes        how many processes met it;  role, worker, pid  the first that did
WITH sums AS (
    SELECT
        op,
        errno,
        file,
        count(*) AS calls,
        count(DISTINCT process) AS processes,
        min(start_ns) AS first_ns,
        max(start_ns) AS last_ns,
        arg_min(process, start_ns) AS process
    FROM failed_calls
    GROUP BY op, errno, file
)
SELECT
    s.op,
    s.errno,
    f.path,
    coalesce(f.path_class, 'data') AS path_class,
    s.calls,
    s.first_ns / 1e9 AS first_s,
    s.last_ns / 1e9 AS last_s,
    s.processes,
    r.role,
    r.worker,
    p.rank,
    p.pid
FROM sums AS s
JOIN roles AS r ON r.process = s.process
JOIN processes AS p ON p.process = s.process
LEFT JOIN files AS f ON f.file = s.file
ORDER BY s.calls DESC, s.first_ns, f.path, s.op
LIMIT 100
