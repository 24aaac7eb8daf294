-- Waits of the step thread (see mains) outside data waits, blocking checkpoints and file calls, by the awaited
-- thing (see standstills): seconds, a mean over main processes.  'no CPU': the thread was ready to run, but had no
-- CPU (step_balances), outside fetches of the thread.  'after backward': waits for the network, another thread or a
-- process between a backward pass and the optimizer's step, certainly for no data.
WITH delays AS (
    SELECT b.delay_ns AS ns
    FROM step_balances AS b
    JOIN mains AS m ON m.process = b.process AND m.thread = b.thread
    WHERE b.start_ns >= m.first_ns AND b.end_ns <= m.last_ns AND b.delay_ns IS NOT NULL
    UNION ALL
    SELECT -f.delay_ns
    FROM fetches AS f
    JOIN mains AS m ON m.process = f.process AND m.thread = f.thread
    WHERE f.start_ns >= m.first_ns AND f.delay_ns IS NOT NULL
),
told AS (
    SELECT
        CASE WHEN is_sure AND what IN ('network', 'pipe', 'other thread') THEN 'after backward' ELSE what END AS what,
        end_ns - start_ns AS ns
    FROM stood
    WHERE NOT is_data
    UNION ALL
    SELECT 'no CPU', ns FROM delays
)
SELECT what, greatest(0, sum(ns)) / 1e9 / (SELECT count(*) FROM mains) AS s
FROM told
GROUP BY what
ORDER BY s DESC
