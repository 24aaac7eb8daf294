-- Step times, in at most 1,000 points of equally many steps, a mean over the steps of all main processes:
-- see step_stretches.
--   unfed_s  of steps without a data wait, see training
--   start_s, end_s  begin and end of the point on the run's time axis, over all main processes
WITH per_point AS (
    SELECT CAST(ceil(max(step) / 1000) AS BIGINT) AS steps FROM step_stretches
)
SELECT
    min(e.step) AS first_step,
    max(e.step) - min(e.step) + 1 AS steps,
    avg(greatest(0, e.to_ns - e.from_ns)) / 1e9 AS step_s,
    avg(least(e.wait_ns, greatest(0, e.to_ns - e.from_ns))) / 1e9 AS data_wait_s,
    avg(least(e.save_ns, greatest(0, e.to_ns - e.from_ns))) / 1e9 AS checkpoint_s,
    max(greatest(0, e.to_ns - e.from_ns)) / 1e9 AS max_step_s,
    min(least(e.from_ns, e.to_ns)) / 1e9 AS start_s,
    max(e.to_ns) / 1e9 AS end_s,
    avg(CASE WHEN e.waits = 0 THEN greatest(0, e.to_ns - e.from_ns - e.save_ns) ELSE 0 END) / 1e9
        AS unfed_s
FROM step_stretches AS e
CROSS JOIN per_point AS p
GROUP BY (e.step - 1) // p.steps
ORDER BY first_step
