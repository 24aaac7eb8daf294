-- step_stretches: a row per step of the step thread, from the end of the previous step to the end of the
-- step.  So events between steps belong to the following step, and events after the last step to the last
-- step; paused time belongs to no step.
--   step      number of the step in the process, from 1
--   wait_ns, save_ns  data waits and blocking checkpoints that begin in the step
--   waits     data waits that begin in the step and were reported by a loader, not inferred; waits before the first
--             step count for the first step
WITH ends AS (
    SELECT
        s.process,
        row_number() OVER (PARTITION BY s.process ORDER BY s.start_ns) AS step,
        greatest(m.first_ns, coalesce(lag(s.end_ns) OVER (
            PARTITION BY s.process ORDER BY s.start_ns
        ), m.first_ns), coalesce(p.end_ns, m.first_ns)) AS from_ns,
        -- Time after the last step (a save) belongs to the last step, as there is no next step.
        CASE
            WHEN lead(s.end_ns) OVER (PARTITION BY s.process ORDER BY s.start_ns) IS NULL
            THEN greatest(s.end_ns, m.last_ns)
            ELSE s.end_ns
        END AS to_ns
    FROM steps AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    ASOF LEFT JOIN pauses AS p ON p.process = s.process AND p.start_ns <= s.start_ns
),
stalls AS (
    SELECT
        process,
        start_ns,
        CASE WHEN in_wall THEN end_ns - start_ns ELSE 0 END AS wait_ns,
        0 AS save_ns,
        CASE WHEN is_inferred THEN 0 ELSE 1 END AS waits
    FROM waits
    UNION ALL
    SELECT process, start_ns, 0, end_ns - start_ns, 0 FROM saves WHERE blocks
),
lasts AS (
    SELECT process, max(to_ns) AS ns FROM ends GROUP BY process
),
marks AS (
    SELECT process, from_ns AS ns, step, 0 AS wait_ns, 0 AS save_ns, 0 AS waits FROM ends
    UNION ALL
    SELECT s.process, s.start_ns, NULL, s.wait_ns, s.save_ns, s.waits
    FROM stalls AS s
    JOIN lasts AS l ON l.process = s.process
    WHERE s.start_ns < l.ns
),
owned AS (
    SELECT
        process,
        coalesce(
            last_value(step IGNORE NULLS) OVER (PARTITION BY process ORDER BY ns, step NULLS LAST), 1
        ) AS step,
        wait_ns,
        save_ns,
        waits
    FROM marks
),
stall_sums AS (
    SELECT process, step, sum(wait_ns) AS wait_ns, sum(save_ns) AS save_ns, sum(waits) AS waits
    FROM owned
    GROUP BY process, step
)
SELECT
    e.process,
    e.step,
    e.from_ns,
    e.to_ns,
    coalesce(s.wait_ns, 0) AS wait_ns,
    coalesce(s.save_ns, 0) AS save_ns,
    coalesce(s.waits, 0) AS waits
FROM ends AS e
LEFT JOIN stall_sums AS s ON s.process = e.process AND s.step = e.step
