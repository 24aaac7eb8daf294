-- barriers: one row per main process with a recorded barrier: a span named `barrier` on the thread that takes the
-- steps.
--   ns  time in barriers, within the training stretch
SELECT s.process, sum(greatest(0, least(s.end_ns, m.last_ns) - greatest(s.start_ns, m.first_ns))) AS ns
FROM timed_spans AS s
JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
WHERE s.kind = 'span' AND s.name = 'barrier' AND s.is_outermost
GROUP BY s.process
