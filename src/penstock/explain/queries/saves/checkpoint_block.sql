-- Seconds of the checkpoint block by part: file calls of the saving thread, by group, and the rest ('other':
-- collecting, serialising, copying from the accelerator).  Each value is the mean over main processes; where main
-- processes wait for each other, only the saves of the process that delays all others count (see shares).
WITH parts AS (
    SELECT c.op_group AS part, sum(c.ns * f.fit * coalesce(h.share, 1)) AS ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    JOIN fits AS f ON f.stretch_id = c.stretch_id
    LEFT JOIN shares AS h ON h.save_id = s.save_id
    WHERE s.kind = 'checkpoint'
    GROUP BY c.op_group
),
block AS (
    SELECT sum((s.to_ns - s.from_ns) * coalesce(h.share, 1)) AS ns
    FROM stretches AS s
    LEFT JOIN shares AS h ON h.save_id = s.save_id
    WHERE s.kind = 'checkpoint'
)
SELECT part, ns / 1e9 / (SELECT count(*) FROM mains) AS s FROM parts
UNION ALL
SELECT
    'other',
    greatest(0, b.ns - coalesce((SELECT sum(ns) FROM parts), 0)) / 1e9 / (SELECT count(*) FROM mains)
FROM block AS b
WHERE b.ns > 0
ORDER BY s DESC
