-- Checkpoints that were loaded, one row each (the first 100): outermost `restore` spans.
--   in_startup  before the training stretch began
--   is_failed   it ended in an exception
--   read_bytes  meanwhile by the loading thread
WITH loads AS (
    SELECT process, thread, start_ns, end_ns, coalesce(b = 1, false) AS is_failed
    FROM timed_spans
    WHERE kind = 'span' AND name = 'restore' AND is_outermost
    ORDER BY start_ns
    LIMIT 100
)
SELECT
    n.process,
    n.start_ns / 1e9 AS start_s,
    (n.end_ns - n.start_ns) / 1e9 AS duration_s,
    coalesce(n.start_ns < any_value(m.first_ns), true) AS in_startup,
    CAST(coalesce(sum(e.moved_bytes), 0) AS BIGINT) AS read_bytes,
    n.is_failed
FROM loads AS n
LEFT JOIN mains AS m ON m.process = n.process
LEFT JOIN file_calls AS e
    ON e.process = n.process AND e.thread = n.thread
        AND e.start_ns >= n.start_ns AND e.start_ns < n.end_ns
        AND e.op_number IN (
            SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access
        )
GROUP BY n.process, n.start_ns, n.end_ns, n.is_failed
ORDER BY n.start_ns
