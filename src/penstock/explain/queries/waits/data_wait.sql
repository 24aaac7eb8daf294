-- Seconds of data wait by part: the mean over main processes; where main processes wait for each other, only the
-- waits of the process that delays all others count (see shares).  in_wall is false for the first batch.  The parts of
-- the waits in the wall time sum to the data wait.
SELECT
    w.in_wall,
    p.part,
    sum(p.ns * coalesce(h.share, 1)) / 1e9 / (SELECT count(*) FROM mains) AS s
FROM wait_parts AS p
JOIN waits AS w ON w.wait_id = p.wait_id
LEFT JOIN shares AS h ON h.wait_id = p.wait_id
WHERE w.in_wall OR NOT w.is_start
GROUP BY w.in_wall, p.part
ORDER BY w.in_wall, s DESC
