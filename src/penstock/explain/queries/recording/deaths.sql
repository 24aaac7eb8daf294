-- Processes that ended badly: killed, or with a non-zero status; the earliest first (the first 200).
--   is_rank      the process is the rank itself, not a child of the rank
--   is_program   no process of the run started the process: the process's status is the job's status
--   status       -N: signal N ended the process; NULL: not known
--   is_sent      the parent or another process of the run sent the signal: an intended end
--   end_s        time of the end since the run began
--   is_seen      true: end_s is exact to a second; false: end_s is the end of the log
--   rss_bytes, shm_used_bytes, shm_bytes, available_bytes  at the last sample of the process: the process's
--                resident memory; use and size of /dev/shm; memory left on the host
--   peak_bytes   the largest resident memory of any child of the parent until the end: an upper bound
--   oom_kills    number of processes that the kernel killed for lack of memory in the same second
WITH ended AS (
    SELECT
        p.*,
        l.end_ns AS last_ns,
        r.role,
        r.worker,
        p.rank IS NOT NULL AND q.rank IS NULL AS is_rank
    FROM processes AS p
    LEFT JOIN processes AS q ON q.process = p.parent
    JOIN lives AS l ON l.process = p.process
    JOIN roles AS r ON r.process = p.process
    WHERE p.state = 'killed' OR (p.status <> 0 AND p.state = 'exited')
),
gone AS (
    SELECT
        e.process,
        max(s.value) FILTER (WHERE s.quantity = 'rss_bytes') AS rss_bytes,
        max(s.value) FILTER (WHERE s.quantity = 'shm_used_bytes') AS shm_used_bytes,
        max(s.value) FILTER (WHERE s.quantity = 'shm_bytes') AS shm_bytes,
        max(s.value) FILTER (WHERE s.quantity = 'oom_kills') AS oom_kills
    FROM ended AS e
    JOIN system AS s
        ON s.kind = 'process' AND s.host = e.host AND s.device = CAST(e.pid AS VARCHAR)
            AND s.at_ns >= e.start_ns
    GROUP BY e.process
),
memory AS (
    SELECT e.process, arg_max(s.value, s.at_ns) AS available_bytes
    FROM ended AS e
    JOIN system AS s
        ON s.kind = 'memory' AND s.quantity = 'available_bytes' AND s.host = e.host
            AND s.at_ns <= e.last_ns + 1000000000
    GROUP BY e.process
),
noted AS (
    SELECT
        p.host,
        TRY_CAST(split_part(n.value, chr(9), 1) AS BIGINT) AS pid,
        max(TRY_CAST(split_part(n.value, chr(9), 5) AS BIGINT)) AS shm_used_bytes,
        max(TRY_CAST(split_part(n.value, chr(9), 6) AS BIGINT)) AS shm_bytes,
        max(TRY_CAST(split_part(n.value, chr(9), 7) AS BIGINT)) AS peak_bytes
    FROM notes AS n
    JOIN processes AS p ON p.process = n.process
    WHERE n.key = 'child ended'
    GROUP BY p.host, 2
)
SELECT
    e.process,
    e.pid,
    e.host,
    e.role,
    e.worker,
    e.rank,
    e.is_rank,
    e.parent IS NULL AS is_program,
    e.state,
    e.status,
    coalesce(contains(e.reason, ', sent by '), false) AS is_sent,
    e.last_ns / 1e9 AS end_s,
    NOT contains(coalesce(e.reason, ''), 'when is not known') AS is_seen,
    CAST(g.rss_bytes AS BIGINT) AS rss_bytes,
    n.peak_bytes,
    CAST(coalesce(g.shm_used_bytes, n.shm_used_bytes) AS BIGINT) AS shm_used_bytes,
    CAST(coalesce(g.shm_bytes, n.shm_bytes) AS BIGINT) AS shm_bytes,
    CAST(m.available_bytes AS BIGINT) AS available_bytes,
    CAST(coalesce(g.oom_kills, 0) AS BIGINT) AS oom_kills
FROM ended AS e
LEFT JOIN gone AS g ON g.process = e.process
LEFT JOIN memory AS m ON m.process = e.process
LEFT JOIN noted AS n ON n.host = e.host AND n.pid = e.pid
ORDER BY e.last_ns, e.process
LIMIT 200
