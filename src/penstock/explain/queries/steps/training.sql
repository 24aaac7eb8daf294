-- The training stretch of all main processes together, in seconds.  Times are means over main processes, so shares
-- of the wall time are comparable between a run with a single process and a run with many.
--   data wait         time in data waits, without the first batch
--   checkpoint block  time in checkpoints that block the step loop
--                     If main processes wait for each other, data wait, checkpoint block and training calls
--                     are the stalls of the slowest process, counted for all processes (see shares)
--   mean stall        data wait, checkpoint block and training calls, always as a mean over main processes
--   most stall        the stall if all main processes wait for each other in every step
--   pooled waits      number of waits for a loader that does not report the maker of a batch (see loader_waits)
--   inferred waits    number of waits not reported by a loader (see waits)
--   unfed, maybe, hidden, between  steps without a known loader, and time that may be data wait (see unsure).  If
--                     main processes wait, or may wait, for each other: the time that the job may lose (see
--                     unsure_lost)
--   locked            waits for the interpreter lock, possibly held in a file call of another thread (see locked_calls)
--   training calls    time in file calls of the step thread (see mains), outside data waits and checkpoints
SELECT
    count(*) AS mains,
    CAST(coalesce(sum(m.steps), 0) AS BIGINT) AS steps,
    sum(m.startup_ns) / 1e9 / count(*) AS startup_s,
    sum(m.first_batch_ns) / 1e9 / count(*) AS first_batch_s,
    sum(m.wall_ns) / 1e9 / count(*) AS wall_s,
    sum(m.after_ns) / 1e9 / count(*) AS after_s,
    sum(w.share_ns) / 1e9 / count(*) AS data_wait_s,
    CAST(coalesce(sum(w.waits), 0) AS BIGINT) AS waits,
    CAST(coalesce(sum(w.pooled), 0) AS BIGINT) AS pooled_waits,
    sum(coalesce(s.share_ns, 0)) / 1e9 / count(*) AS checkpoint_block_s,
    sum(coalesce(c.share_ns, 0)) / 1e9 / count(*) AS training_calls_s,
    CAST(coalesce(sum(u.unfed_steps), 0) AS BIGINT) AS unfed_steps,
    sum(coalesce(u.unfed_ns, 0)) / 1e9 / count(*) * (SELECT share FROM unsure_lost) AS unfed_s,
    sum(coalesce(u.maybe_ns, 0)) / 1e9 / count(*) * (SELECT share FROM unsure_lost) AS maybe_s,
    sum(coalesce(u.hidden_ns, 0)) / 1e9 / count(*) * (SELECT share FROM unsure_lost) AS hidden_s,
    sum(coalesce(u.between_ns, 0)) / 1e9 / count(*) * (SELECT share FROM unsure_lost) AS between_s,
    CAST(coalesce(sum(w.inferred), 0) AS BIGINT) AS inferred_waits,
    sum(coalesce(w.ns, 0) + coalesce(s.ns, 0) + coalesce(c.ns, 0)) / 1e9 / count(*) AS mean_stall_s,
    sum(coalesce(w.most_ns, 0) + coalesce(s.most_ns, 0) + coalesce(c.most_ns, 0)) / 1e9 / count(*)
        AS most_stall_s,
    sum(coalesce(k.ns, 0)) / 1e9 / count(*) AS locked_s
FROM mains AS m
LEFT JOIN (
    SELECT
        w.process,
        sum(w.end_ns - w.start_ns) AS ns,
        sum((w.end_ns - w.start_ns) * coalesce(h.share, 1)) AS share_ns,
        sum((w.end_ns - w.start_ns) * coalesce(h.most, 1)) AS most_ns,
        count(w.index) AS waits,
        count(w.index) FILTER (WHERE w.is_pooled) AS pooled,
        count(*) FILTER (WHERE w.is_inferred) AS inferred
    FROM waits AS w
    LEFT JOIN shares AS h ON h.wait_id = w.wait_id
    WHERE w.in_wall
    GROUP BY w.process
) AS w ON w.process = m.process
LEFT JOIN (
    SELECT
        s.process,
        sum(s.end_ns - s.start_ns) AS ns,
        sum((s.end_ns - s.start_ns) * coalesce(h.share, 1)) AS share_ns,
        sum((s.end_ns - s.start_ns) * coalesce(h.most, 1)) AS most_ns
    FROM saves AS s
    LEFT JOIN shares AS h ON h.save_id = s.save_id
    WHERE s.blocks
    GROUP BY s.process
) AS s ON s.process = m.process
LEFT JOIN (
    SELECT s.process, sum(c.ns * f.fit) AS ns, sum(c.ns * f.fit * coalesce(h.share, 1)) AS share_ns,
        sum(c.ns * f.fit * coalesce(h.most, 1)) AS most_ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    JOIN fits AS f ON f.stretch_id = c.stretch_id
    LEFT JOIN (
        SELECT o.stretch_id, sum(o.ns * h.share) / nullif(sum(o.ns), 0) AS share,
            sum(o.ns * h.most) / nullif(sum(o.ns), 0) AS most
        FROM own_calls AS o
        JOIN shares AS h ON h.calls_id = o.calls_id
        GROUP BY o.stretch_id
    ) AS h ON h.stretch_id = c.stretch_id
    WHERE s.kind = 'step'
    GROUP BY s.process
) AS c ON c.process = m.process
LEFT JOIN unsure AS u ON u.process = m.process
LEFT JOIN locked_calls AS k ON k.process = m.process
