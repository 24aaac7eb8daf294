-- network_parts: the part 'network' of data waits, by endpoint and by awaited phase, in seconds as in data_wait.  The
-- rows sum to the part 'network'.
--   in_wall    false: for the first batch
--   endpoint   HOST:PORT; NULL: not known
--   phase      connect (including the name look-up), send, first byte, transfer, back-off; NULL: not known
--   is_remote  true: as far as known, a process outside this job answered at the endpoint
--   longest_s  upper bound of the longest wait for one first byte, as far as one data wait contains it
-- Joined in each branch: Spark cannot plan a join of the union.
WITH stood AS (
    SELECT s.wait_id, t.phase, t.endpoint, t.ns
    FROM stretch_stands AS t
    JOIN stretches AS s ON s.stretch_id = t.stretch_id
    WHERE t.what = 'network' AND s.wait_id IS NOT NULL
    UNION ALL
    SELECT s.wait_id, t.phase, t.endpoint, t.network_ns
    FROM pool_stands AS t
    JOIN stretches AS s ON s.stretch_id = t.stretch_id
    WHERE s.wait_id IS NOT NULL
),
shares_of AS (
    SELECT wait_id, endpoint, phase, sum(ns) AS ns FROM stood GROUP BY wait_id, endpoint, phase
),
late AS (
    SELECT endpoint, max(end_ns - start_ns) AS ns
    FROM standstills
    WHERE what = 'network' AND phase = 'first byte'
    GROUP BY endpoint
),
whole AS (
    SELECT wait_id, sum(ns) AS ns FROM shares_of GROUP BY wait_id
)
SELECT
    w.in_wall,
    t.endpoint,
    t.phase,
    t.endpoint IS NOT NULL AND NOT starts_with(t.endpoint, 'accepted:') AND o.endpoint IS NULL AS is_remote,
    sum(p.ns * t.ns / a.ns * coalesce(h.share, 1)) / 1e9 / (SELECT count(*) FROM mains) AS s,
    least(max(p.ns * t.ns / a.ns * coalesce(h.share, 1)), coalesce(max(l.ns), 0)) / 1e9 / (SELECT count(*) FROM mains)
        AS longest_s
FROM wait_parts AS p
JOIN waits AS w ON w.wait_id = p.wait_id
JOIN whole AS a ON a.wait_id = p.wait_id
JOIN shares_of AS t ON t.wait_id = p.wait_id
LEFT JOIN own_endpoints AS o ON o.endpoint = t.endpoint
LEFT JOIN late AS l ON l.endpoint = t.endpoint
LEFT JOIN shares AS h ON h.wait_id = p.wait_id
WHERE (w.in_wall OR NOT w.is_start) AND p.part = 'network' AND a.ns > 0
GROUP BY w.in_wall, t.endpoint, t.phase, o.endpoint
ORDER BY w.in_wall DESC, s DESC, t.endpoint, t.phase
