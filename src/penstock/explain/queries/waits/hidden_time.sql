-- hidden_time: for each main process with known blocked time of the steps (step_balances), the time of the training
-- stretch in which the step thread was asleep.
--   asleep_ns  asleep, for any reason
--   hidden_ns  asleep in no recorded call that blocked and in no file call; negative: calls used the CPU
WITH balances AS (
    SELECT b.process, sum(b.blocked_ns) AS ns
    FROM step_balances AS b
    JOIN mains AS m ON m.process = b.process AND m.thread = b.thread
    WHERE b.start_ns >= m.first_ns AND b.end_ns <= m.last_ns
    GROUP BY b.process
),
explained AS (
    SELECT process, sum(ns) AS ns
    FROM (
        SELECT s.process, s.end_ns - s.start_ns AS ns
        FROM standstills AS s
        JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
        WHERE s.start_ns >= m.first_ns AND s.end_ns <= m.last_ns
        UNION ALL
        SELECT f.process, coalesce(f.duration_ns, 0)
        FROM file_waits AS f
        JOIN mains AS m ON m.process = f.process AND m.thread = f.thread
        WHERE f.start_ns >= m.first_ns AND f.start_ns < m.last_ns
    )
    GROUP BY process
)
SELECT b.process, b.ns AS asleep_ns, b.ns - coalesce(e.ns, 0) AS hidden_ns
FROM balances AS b
LEFT JOIN explained AS e ON e.process = b.process
WHERE b.ns IS NOT NULL
