-- The training stretch of all main processes together, in seconds: a mean over main processes, so that
-- shares of the wall time mean the same for one process and for many.
--   data wait         time in data waits, the first batch excepted
--   checkpoint block  time in checkpoints that block the step loop
--   pooled waits      those whose loader does not say who makes a batch (see waits)
--   unfed             steps, and their time without checkpoints, in which no loader was seen to hand over
--                     a batch: how much of it is data wait is not known
--   training calls    time the thread that takes the steps spends in file calls outside both
SELECT
    count(*) AS mains,
    CAST(coalesce(sum(m.steps), 0) AS BIGINT) AS steps,
    sum(m.startup_ns) / 1e9 / count(*) AS startup_s,
    sum(m.first_batch_ns) / 1e9 / count(*) AS first_batch_s,
    sum(m.wall_ns) / 1e9 / count(*) AS wall_s,
    sum(m.after_ns) / 1e9 / count(*) AS after_s,
    sum(w.ns) / 1e9 / count(*) AS data_wait_s,
    CAST(coalesce(sum(w.waits), 0) AS BIGINT) AS waits,
    CAST(coalesce(sum(w.pooled), 0) AS BIGINT) AS pooled_waits,
    sum(coalesce(s.ns, 0)) / 1e9 / count(*) AS checkpoint_block_s,
    sum(coalesce(c.ns, 0)) / 1e9 / count(*) AS training_calls_s,
    CAST(coalesce(sum(u.steps), 0) AS BIGINT) AS unfed_steps,
    sum(coalesce(u.ns, 0)) / 1e9 / count(*) AS unfed_s
FROM mains AS m
LEFT JOIN (
    SELECT process, sum(end_ns - start_ns) AS ns, count(index) AS waits,
        count(index) FILTER (WHERE is_pooled) AS pooled
    FROM waits
    WHERE in_wall
    GROUP BY process
) AS w ON w.process = m.process
LEFT JOIN (
    SELECT process, sum(end_ns - start_ns) AS ns FROM saves WHERE blocks GROUP BY process
) AS s ON s.process = m.process
LEFT JOIN (
    SELECT s.process, sum(c.ns) AS ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    WHERE s.kind = 'step'
    GROUP BY s.process
) AS c ON c.process = m.process
LEFT JOIN (
    SELECT process, count(*) AS steps, sum(greatest(0, to_ns - from_ns - save_ns)) AS ns
    FROM step_stretches
    WHERE waits = 0
    GROUP BY process
) AS u ON u.process = m.process
