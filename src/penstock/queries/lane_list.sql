-- lane_list: the lanes of the timeline, in the order they are shown: threads that made file calls or
-- that the step loop waited for; the 256 with the most time, threads that train first.
--   is_main_thread  the first thread of its process
--   all_lanes       how many there are, the ones left out included
WITH busy AS (
    SELECT process, thread, sum(coalesce(duration_ns, 0)) AS ns FROM file_calls GROUP BY process, thread
    UNION ALL
    SELECT process, thread, sum(to_ns - from_ns)
    FROM stretches
    WHERE is_blocking AND kind <> 'step'
    GROUP BY process, thread
),
sums AS (
    SELECT process, thread, sum(ns) AS ns FROM busy GROUP BY process, thread
),
workers AS (
    SELECT process, min(index) AS worker
    FROM spans
    WHERE kind = 'span' AND name = 'worker'
    GROUP BY process
),
known AS (
    SELECT
        s.process,
        s.thread,
        CASE
            WHEN m.process IS NOT NULL THEN 'main'
            WHEN w.process IS NOT NULL THEN 'worker'
            ELSE 'other'
        END AS role,
        w.worker,
        p.pid,
        p.rank,
        t.tid,
        t.name,
        coalesce(t.is_main, false) AS is_main_thread,
        s.ns,
        count(*) OVER () AS all_lanes
    FROM sums AS s
    JOIN processes AS p ON p.process = s.process
    LEFT JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    LEFT JOIN workers AS w ON w.process = s.process
    LEFT JOIN threads AS t ON t.process = s.process AND t.thread = s.thread
    QUALIFY row_number() OVER (
        ORDER BY m.process IS NOT NULL DESC, s.ns DESC, s.process, s.thread
    ) <= 256
)
SELECT
    row_number() OVER (
        ORDER BY list_position(['main', 'worker', 'other'], role), rank, worker, process,
            is_main_thread DESC, thread
    ) AS lane,
    process,
    thread,
    role,
    worker,
    pid,
    rank,
    tid,
    name,
    is_main_thread,
    all_lanes
FROM known
