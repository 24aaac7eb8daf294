-- stretch_stands: of a stretch of a thread (a fetch, or the work of another thread), the time in which the
-- thread was blocked, by the awaited thing, and for the network by phase
-- and endpoint.
WITH own AS (
    SELECT stretch_id, kind, process, thread, from_ns, to_ns
    FROM stretches
    WHERE kind IN ('fetch', 'made')
),
stands AS (
    SELECT s.*, k.kind
    FROM standstills AS s
    JOIN (SELECT DISTINCT kind, process, thread FROM own) AS k
        ON k.process = s.process AND k.thread = s.thread
),
met AS (
    SELECT o.stretch_id, s.what, s.phase, s.endpoint, s.start_ns AS from_ns, least(s.end_ns, o.to_ns) AS to_ns
    FROM stands AS s
    ASOF JOIN own AS o
        ON o.process = s.process AND o.thread = s.thread AND o.kind = s.kind AND o.from_ns <= s.start_ns
    WHERE s.start_ns < o.to_ns
    UNION ALL
    SELECT o.stretch_id, s.what, s.phase, s.endpoint, o.from_ns, least(s.end_ns, o.to_ns)
    FROM own AS o
    ASOF JOIN stands AS s
        ON s.process = o.process AND s.thread = o.thread AND s.kind = o.kind AND s.start_ns < o.from_ns
    WHERE s.end_ns > o.from_ns
)
SELECT stretch_id, what, phase, endpoint, sum(to_ns - from_ns) AS ns
FROM met
GROUP BY stretch_id, what, phase, endpoint
