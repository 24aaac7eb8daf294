-- Stretches in which main processes were not recorded (without a main process: any process), in seconds of the run's
-- time (the first 1,000).
SELECT p.process, p.start_ns / 1e9 AS start_s, p.end_ns / 1e9 AS end_s
FROM pauses AS p
WHERE p.end_ns > p.start_ns
    AND (p.process IN (SELECT process FROM mains) OR NOT EXISTS (SELECT 1 FROM mains))
ORDER BY p.start_ns, p.process
LIMIT 1000
