-- Recorded processes, and programs started without a log; main processes first (the first 200).
WITH listed AS (
    SELECT
        p.pid,
        p.host,
        p.rank,
        r.role,
        r.worker,
        p.command,
        p.state,
        coalesce(p.reason, '') AS reason,
        (l.end_ns - l.start_ns) / 1e9 AS life_s,
        coalesce(c.calls, 0) AS calls,
        c.time_s
    FROM processes AS p
    JOIN lives AS l ON l.process = p.process
    JOIN roles AS r ON r.process = p.process
    LEFT JOIN process_totals AS c ON c.process = p.process
    UNION ALL
    SELECT pid, NULL, NULL, 'not recorded', NULL, program, '', coalesce(reason, ''), NULL, NULL, NULL
    FROM unseen
)
SELECT *
FROM listed
ORDER BY
    list_position(['main', 'worker', 'other', 'not recorded'], role),
    life_s DESC NULLS LAST,
    worker,
    pid
LIMIT 200
