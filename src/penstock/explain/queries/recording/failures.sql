-- File calls with a failure of storage, space or rights (failed_calls), by operation, error and file: the 100
-- groups with the most calls.
--   first_s, last_s  start of the first and of the last failed call, in seconds since the start of the run
--   processes        number of processes with the failure
--   role, worker, rank, pid  of the process with the first failure
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
