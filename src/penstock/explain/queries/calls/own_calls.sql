-- own_calls: the file calls of the threads that take the steps, outside data waits and blocking checkpoints, summed by
-- stretch and by the step at the start of the call.  A process without steps has no rows.
--   ns  the thread's wait for storage in the calls
SELECT
    row_number() OVER (ORDER BY stretch_id, step) AS calls_id,
    *
FROM (
    SELECT s.process, h.stretch_id, e.step, sum(h.ns * f.fit) AS ns
    FROM held AS h
    JOIN stretches AS s ON s.stretch_id = h.stretch_id
    JOIN fits AS f ON f.stretch_id = h.stretch_id
    ASOF JOIN step_stretches AS e ON e.process = s.process AND e.from_ns <= h.from_ns
    WHERE s.kind = 'step' AND h.is_own
    GROUP BY s.process, h.stretch_id, e.step
)
