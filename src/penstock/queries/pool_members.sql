-- pool_members: for each main process that has pooled waits, the processes whose threads may make a
-- batch: itself, and its loader's workers.
WITH pooled AS (
    SELECT DISTINCT process AS main FROM waits WHERE is_pooled
)
SELECT main, main AS process FROM pooled
UNION
SELECT w.main, w.process
FROM (
    SELECT s.process, coalesce(arg_max(lm.process, lm.start_ns), min(l.parent)) AS main
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    LEFT JOIN lives AS lm
        ON lm.pid = s.b AND lm.host = l.host AND lm.start_ns <= s.start_ns
            AND lm.process IN (SELECT main FROM pooled)
    WHERE s.kind = 'span' AND s.name = 'worker'
    GROUP BY s.process
) AS w
WHERE w.main IN (SELECT main FROM pooled)
