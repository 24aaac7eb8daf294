-- stretch_stands: for each stretch of a thread (a fetch, or the work of another thread), the time in which the thread
-- was blocked, by the awaited thing; for the network also by phase and endpoint.
-- A wait that another thread ended counts as network wait while the other thread was itself blocked on the network
-- (an event loop in a thread of its own, as in fsspec).  A wait for a pipe or a process counts as network wait while a
-- fetcher, such as curl, was blocked on the network: a program that the process started, directly or through a shell,
-- and that received more from the network than the program sent.
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
    SELECT
        o.stretch_id, s.process, s.what, s.waker, s.phase, s.endpoint, s.start_ns AS from_ns,
        least(s.end_ns, o.to_ns) AS to_ns
    FROM stands AS s
    ASOF JOIN own AS o
        ON o.process = s.process AND o.thread = s.thread AND o.kind = s.kind AND o.from_ns <= s.start_ns
    WHERE s.start_ns < o.to_ns
    UNION ALL
    SELECT o.stretch_id, s.process, s.what, s.waker, s.phase, s.endpoint, o.from_ns, least(s.end_ns, o.to_ns)
    FROM own AS o
    ASOF JOIN stands AS s
        ON s.process = o.process AND s.thread = o.thread AND s.kind = o.kind AND s.start_ns < o.from_ns
    WHERE s.end_ns > o.from_ns
),
-- The running sum of each thread's waits for the network, by phase and endpoint.
helpers AS (
    SELECT DISTINCT process, waker AS thread FROM met WHERE what = 'other thread' AND waker IS NOT NULL
),
networks AS (
    SELECT
        s.process AS main, s.thread AS helper, coalesce(s.phase, '') AS phase, coalesce(s.endpoint, '') AS endpoint,
        s.start_ns, s.end_ns
    FROM standstills AS s
    JOIN helpers AS h ON h.process = s.process AND h.thread = s.thread
    WHERE s.what = 'network'
    UNION ALL
    SELECT f.main, -1, coalesce(s.phase, ''), coalesce(s.endpoint, ''), s.start_ns, s.end_ns
    FROM standstills AS s
    JOIN fetchers AS f ON f.process = s.process
    WHERE s.what = 'network'
),
counted AS (
    SELECT
        main, helper, phase, endpoint, start_ns, end_ns,
        sum(end_ns - start_ns) OVER (
            PARTITION BY main, helper, phase, endpoint ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) - (end_ns - start_ns) AS before_ns
    FROM networks
),
kinds AS (
    SELECT DISTINCT main, helper, phase, endpoint FROM networks
),
followed AS (
    SELECT
        m.stretch_id, m.what, m.from_ns, m.to_ns, k.main, k.helper, k.phase, k.endpoint
    FROM met AS m
    JOIN kinds AS k ON k.main = m.process AND k.helper = CASE WHEN m.what = 'other thread' THEN m.waker ELSE -1 END
    WHERE m.what IN ('other thread', 'pipe', 'program')
),
behind AS (
    SELECT
        p.stretch_id, p.what, p.from_ns, p.to_ns, p.phase, p.endpoint,
        greatest(
            0,
            coalesce(t.before_ns + least(p.to_ns, t.end_ns) - t.start_ns, 0)
                - coalesce(f.before_ns + least(p.from_ns, f.end_ns) - f.start_ns, 0)
        ) AS ns
    FROM followed AS p
    ASOF LEFT JOIN counted AS f
        ON f.main = p.main AND f.helper = p.helper AND f.phase = p.phase AND f.endpoint = p.endpoint
            AND f.start_ns <= p.from_ns
    ASOF LEFT JOIN counted AS t
        ON t.main = p.main AND t.helper = p.helper AND t.phase = p.phase AND t.endpoint = p.endpoint
            AND t.start_ns <= p.to_ns
),
-- Several programs may have been blocked on the network at once: the network part of a wait is at most the wait itself.
shared AS (
    SELECT
        *,
        least(1, (to_ns - from_ns) / greatest(1, sum(ns) OVER (PARTITION BY stretch_id, what, from_ns))) AS part
    FROM behind
    WHERE ns > 0
),
rows_of AS (
    SELECT stretch_id, what, phase, endpoint, to_ns - from_ns AS ns FROM met
    UNION ALL
    SELECT stretch_id, 'network', nullif(phase, ''), nullif(endpoint, ''), ns * part FROM shared
    UNION ALL
    SELECT stretch_id, what, NULL, NULL, -ns * part FROM shared
)
SELECT stretch_id, what, phase, endpoint, sum(ns) AS ns
FROM rows_of
GROUP BY stretch_id, what, phase, endpoint
