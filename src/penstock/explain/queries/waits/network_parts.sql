-- network_parts: the part 'network' of data waits, by endpoint and by what was waited for: seconds, as data_wait has
-- them; the rows in the wall sum to that part.
--   endpoint   HOST:PORT; NULL: not known
--   phase      connect (with the look-up of the name), send, first byte, transfer; NULL: not known
--   is_remote  true: a process outside this job answered it, as far as it is known
WITH own AS (
    SELECT endpoint FROM connections GROUP BY endpoint HAVING bool_and(peer_process IS NOT NULL)
),
stood AS (
    SELECT stretch_id, phase, endpoint, ns FROM stretch_stands WHERE what = 'network'
    UNION ALL
    SELECT stretch_id, phase, endpoint, network_ns FROM pool_stands
),
shares_of AS (
    SELECT s.wait_id, t.endpoint, t.phase, sum(t.ns) AS ns
    FROM stood AS t
    JOIN stretches AS s ON s.stretch_id = t.stretch_id
    WHERE s.wait_id IS NOT NULL
    GROUP BY s.wait_id, t.endpoint, t.phase
),
-- A window: Spark cannot join these rows to sums of themselves.
of_whole AS (
    SELECT wait_id, endpoint, phase, ns, sum(ns) OVER (PARTITION BY wait_id) AS whole_ns FROM shares_of
)
SELECT
    t.endpoint,
    t.phase,
    t.endpoint IS NOT NULL AND NOT starts_with(t.endpoint, 'accepted:') AND o.endpoint IS NULL AS is_remote,
    sum(p.ns * t.ns / t.whole_ns * coalesce(h.share, 1)) / 1e9 / (SELECT count(*) FROM mains) AS s
FROM wait_parts AS p
JOIN waits AS w ON w.wait_id = p.wait_id
JOIN of_whole AS t ON t.wait_id = p.wait_id
LEFT JOIN own AS o ON o.endpoint = t.endpoint
LEFT JOIN shares AS h ON h.wait_id = p.wait_id
WHERE w.in_wall AND p.part = 'network' AND t.whole_ns > 0
GROUP BY t.endpoint, t.phase, o.endpoint
ORDER BY s DESC, t.endpoint, t.phase
