-- segments: each beginning, cut by the known activity of the thread; the segments of a beginning cover the beginning.
--   kind  at an instant with several activities, the first in this order: paused; restore (restored); worker start
--         and first batch (of the waits before the training); checkpoint; cache (caches); import (imports); helped
--         (blocked, while another thread or process of the job makes a cache); network (otherwise blocked by a
--         socket); waiting (otherwise blocked: a pipe, a lock, a sleep, another program); rest.  Waits inside
--         computing libraries are rest
WITH marks AS (
    SELECT p.process, p.start_ns AS from_ns, p.end_ns AS to_ns, 1 AS place
    FROM pauses AS p
    UNION ALL
    SELECT b.process, r.start_ns, r.end_ns, 2
    FROM restored AS r
    JOIN beginnings AS b ON b.process = r.process AND r.thread IN (b.thread, b.step_thread)
    UNION ALL
    SELECT s.main, s.from_ns, s.to_ns,
        CASE WHEN s.kind IN ('worker start', 'loader start', 'pass end') THEN 3 ELSE 4 END
    FROM stretches AS s
    JOIN waits AS w ON w.wait_id = s.wait_id
    WHERE NOT w.in_wall
    UNION ALL
    SELECT s.process, s.start_ns, s.end_ns, 5
    FROM saves AS s
    JOIN beginnings AS b ON b.process = s.process AND s.thread IN (b.thread, b.step_thread)
    UNION ALL
    SELECT process, from_ns, to_ns, CASE WHEN is_own THEN 6 ELSE 8 END FROM caches
    UNION ALL
    SELECT process, start_ns, end_ns, 7 FROM imports WHERE is_main
    UNION ALL
    SELECT b.process, w.start_ns, w.end_ns, CASE WHEN w.what = 'network' THEN 9 ELSE 10 END
    FROM beginnings AS b
    JOIN standstills AS w ON w.process = b.process AND w.thread = b.thread
    WHERE w.what NOT IN ('compute', 'accelerator')
),
clipped AS (
    SELECT
        m.process,
        greatest(m.from_ns, b.from_ns) AS from_ns,
        least(m.to_ns, b.to_ns) AS to_ns,
        m.place
    FROM marks AS m
    JOIN beginnings AS b ON b.process = m.process
),
points AS (
    SELECT process, from_ns AS ns, place, 1 AS sign FROM clipped WHERE to_ns > from_ns
    UNION ALL
    SELECT process, to_ns, place, -1 FROM clipped WHERE to_ns > from_ns
    UNION ALL
    SELECT process, from_ns, 11, 1 FROM beginnings WHERE to_ns > from_ns
    UNION ALL
    SELECT process, to_ns, 11, -1 FROM beginnings WHERE to_ns > from_ns
),
steps_up AS (
    SELECT
        process,
        ns,
        sum(CASE WHEN place = 1 THEN sign ELSE 0 END) AS n1,
        sum(CASE WHEN place = 2 THEN sign ELSE 0 END) AS n2,
        sum(CASE WHEN place = 3 THEN sign ELSE 0 END) AS n3,
        sum(CASE WHEN place = 4 THEN sign ELSE 0 END) AS n4,
        sum(CASE WHEN place = 5 THEN sign ELSE 0 END) AS n5,
        sum(CASE WHEN place = 6 THEN sign ELSE 0 END) AS n6,
        sum(CASE WHEN place = 7 THEN sign ELSE 0 END) AS n7,
        sum(CASE WHEN place = 8 THEN sign ELSE 0 END) AS n8,
        sum(CASE WHEN place = 9 THEN sign ELSE 0 END) AS n9,
        sum(CASE WHEN place = 10 THEN sign ELSE 0 END) AS n10
    FROM points
    GROUP BY process, ns
),
running AS (
    SELECT
        process,
        ns AS from_ns,
        lead(ns) OVER along AS to_ns,
        sum(n1) OVER along AS n1,
        sum(n2) OVER along AS n2,
        sum(n3) OVER along AS n3,
        sum(n4) OVER along AS n4,
        sum(n5) OVER along AS n5,
        sum(n6) OVER along AS n6,
        sum(n7) OVER along AS n7,
        sum(n8) OVER along AS n8,
        sum(n9) OVER along AS n9,
        sum(n10) OVER along AS n10
    FROM steps_up
    WINDOW along AS (PARTITION BY process ORDER BY ns)
)
SELECT
    process,
    from_ns,
    to_ns,
    CASE
        WHEN n1 > 0 THEN 'paused'
        WHEN n2 > 0 THEN 'restore'
        WHEN n3 > 0 THEN 'worker start'
        WHEN n4 > 0 THEN 'first batch'
        WHEN n5 > 0 THEN 'checkpoint'
        WHEN n6 > 0 THEN 'cache'
        WHEN n7 > 0 THEN 'import'
        WHEN n8 > 0 AND n9 + n10 > 0 THEN 'helped'
        WHEN n9 > 0 THEN 'network'
        WHEN n10 > 0 THEN 'waiting'
        ELSE 'rest'
    END AS kind
FROM running
WHERE to_ns IS NOT NULL
