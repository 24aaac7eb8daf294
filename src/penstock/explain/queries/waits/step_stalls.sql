-- step_stalls: the data waits of the training stretch, the blocking checkpoints and own_calls, each with the step
-- during which the stall starts.  A process without steps has no rows.
WITH halts AS (
    SELECT process, wait_id, NULL AS save_id, start_ns, end_ns FROM waits WHERE in_wall
    UNION ALL
    SELECT process, NULL, save_id, start_ns, end_ns FROM saves WHERE blocks
)
SELECT h.process, h.wait_id, h.save_id, NULL AS calls_id, g.generation, e.step, h.end_ns - h.start_ns AS ns
FROM halts AS h
JOIN teams AS g ON g.process = h.process
ASOF JOIN step_stretches AS e ON e.process = h.process AND e.from_ns <= h.start_ns
UNION ALL
SELECT c.process, NULL, NULL, c.calls_id, g.generation, c.step, c.ns
FROM own_calls AS c
JOIN teams AS g ON g.process = c.process
