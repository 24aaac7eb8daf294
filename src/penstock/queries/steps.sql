-- steps: the finished steps that count, by process: those marked by hand (b = 1), else those that an
-- adapter found (0), else the iterations of a loader (2).
SELECT process, thread, index, start_ns, start_ns + duration_ns AS end_ns
FROM spans
WHERE kind = 'step' AND duration_ns IS NOT NULL
QUALIFY CASE b WHEN 1 THEN 0 WHEN 0 THEN 1 ELSE 2 END
    = min(CASE b WHEN 1 THEN 0 WHEN 0 THEN 1 ELSE 2 END) OVER (PARTITION BY process)
