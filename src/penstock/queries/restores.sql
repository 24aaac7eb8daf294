-- Checkpoints that were loaded, one row each (the first 100): outermost `restore` spans.
--   in_startup  before the training stretch began
--   read_bytes  meanwhile by the loading thread
WITH loads AS (
    SELECT
        s.process,
        s.thread,
        s.start_ns,
        coalesce(s.start_ns + s.duration_ns, greatest(l.end_ns, s.start_ns)) AS end_ns
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    WHERE s.kind = 'span' AND s.name = 'restore'
),
nested AS (
    SELECT
        *,
        max(end_ns) OVER (
            PARTITION BY process, thread ORDER BY start_ns, end_ns DESC
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM loads
),
outermost AS (
    SELECT * FROM nested WHERE before_ns IS NULL OR start_ns >= before_ns ORDER BY start_ns LIMIT 100
)
SELECT
    n.process,
    n.start_ns / 1e9 AS start_s,
    (n.end_ns - n.start_ns) / 1e9 AS duration_s,
    coalesce(n.start_ns < any_value(m.first_ns), true) AS in_startup,
    CAST(coalesce(sum(e.moved_bytes), 0) AS BIGINT) AS read_bytes
FROM outermost AS n
LEFT JOIN mains AS m ON m.process = n.process
LEFT JOIN file_calls AS e
    ON e.process = n.process AND e.thread = n.thread
        AND e.start_ns >= n.start_ns AND e.start_ns < n.end_ns
        AND e.op_number IN (
            SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access
        )
GROUP BY n.process, n.start_ns, n.end_ns
ORDER BY n.start_ns
