-- Step times, in at most 1,000 points of equally many steps, a mean over the steps of all main processes:
-- from the end of one step to the end of the next, so that what happens between steps belongs to the
-- step that follows, after the last step to that; what was paused to none.  A data wait or a checkpoint belongs to the step in
-- whose time it begins.
--   start_s, end_s  where the point lies on the run's axis of time, over all main processes
WITH ends AS (
    SELECT
        s.process,
        row_number() OVER (PARTITION BY s.process ORDER BY s.start_ns) AS step,
        greatest(m.first_ns, coalesce(lag(s.end_ns) OVER (
            PARTITION BY s.process ORDER BY s.start_ns
        ), m.first_ns), coalesce(p.end_ns, m.first_ns)) AS from_ns,
        -- What follows the last step (a save) belongs to it, as there is no next one.
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
    SELECT process, start_ns, end_ns - start_ns AS wait_ns, 0 AS save_ns FROM waits WHERE in_wall
    UNION ALL
    SELECT process, start_ns, 0, end_ns - start_ns FROM saves WHERE blocks
),
lasts AS (
    SELECT process, max(to_ns) AS ns FROM ends GROUP BY process
),
marks AS (
    SELECT process, from_ns AS ns, step, 0 AS wait_ns, 0 AS save_ns FROM ends
    UNION ALL
    SELECT s.process, s.start_ns, NULL, s.wait_ns, s.save_ns
    FROM stalls AS s
    JOIN lasts AS l ON l.process = s.process
    WHERE s.start_ns < l.ns
),
owned AS (
    SELECT
        process,
        last_value(step IGNORE NULLS) OVER (PARTITION BY process ORDER BY ns, step NULLS LAST) AS step,
        wait_ns,
        save_ns
    FROM marks
),
stall_sums AS (
    SELECT process, step, sum(wait_ns) AS wait_ns, sum(save_ns) AS save_ns
    FROM owned
    GROUP BY process, step
),
per_point AS (
    SELECT CAST(ceil(max(step) / 1000) AS BIGINT) AS steps FROM ends
)
SELECT
    min(e.step) AS first_step,
    max(e.step) - min(e.step) + 1 AS steps,
    avg(greatest(0, e.to_ns - e.from_ns)) / 1e9 AS step_s,
    avg(least(coalesce(s.wait_ns, 0), greatest(0, e.to_ns - e.from_ns))) / 1e9 AS data_wait_s,
    avg(least(coalesce(s.save_ns, 0), greatest(0, e.to_ns - e.from_ns))) / 1e9 AS checkpoint_s,
    max(greatest(0, e.to_ns - e.from_ns)) / 1e9 AS max_step_s,
    min(least(e.from_ns, e.to_ns)) / 1e9 AS start_s,
    max(e.to_ns) / 1e9 AS end_s
FROM ends AS e
CROSS JOIN per_point AS p
LEFT JOIN stall_sums AS s ON s.process = e.process AND s.step = e.step
GROUP BY (e.step - 1) // p.steps
ORDER BY first_step
