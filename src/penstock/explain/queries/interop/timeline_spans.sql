-- The stretches of a timeline that overlap from_ns..to_ns, by thread and start.
--   number  number of the step or batch; for a data wait, number of the delivered batch
--   cpu_ns, delay_ns  for fetches and waits: CPU time inside; time ready to run without a CPU
-- Excluded are spans that only carry a number: spans of a single tick, a step's balance and a step's input
-- stretches.  A graph's waits are data waits too.
WITH told AS (
    SELECT process, thread, kind, name, index, b, start_ns, end_ns, is_finished
    FROM timed_spans
    WHERE kind <> 'span'
        OR name NOT IN (
            'fetch delay', 'fetch end', 'fetch faults', 'delivered', 'wait cpu', 'wait delay', 'graph',
            'get next', 'get next delay', 'thread cpu', 'step balance', 'input stretch', 'save failed', 'trains'
        )
    UNION ALL
    SELECT process, thread, 'span', 'data wait', index, NULL, start_ns, end_ns, true
    FROM graph_waits
)
SELECT
    s.process,
    s.thread,
    s.kind,
    s.name,
    coalesce(w.index, s.index) AS number,
    CASE WHEN s.kind = 'span' AND s.name IN ('data wait', 'fetch') THEN s.b END AS cpu_ns,
    f.delay_ns,
    s.start_ns,
    s.end_ns,
    NOT s.is_finished AS is_in_flight,
    coalesce(s.kind = 'span' AND s.name IN ('checkpoint', 'restore', 'load state') AND s.b = 1, false) AS is_failed
FROM told AS s
LEFT JOIN waits AS w
    ON s.kind = 'span' AND s.name = 'data wait' AND w.process = s.process AND w.thread = s.thread
        AND w.start_ns = s.start_ns
LEFT JOIN fetches AS f
    ON s.kind = 'span' AND s.name = 'fetch' AND f.process = s.process AND f.thread = s.thread
        AND f.start_ns = s.start_ns
WHERE s.start_ns < $to_ns
    AND s.end_ns >= $from_ns
    AND s.process IN (SELECT process FROM timeline_family)
ORDER BY s.process, s.thread, s.start_ns, s.end_ns DESC
