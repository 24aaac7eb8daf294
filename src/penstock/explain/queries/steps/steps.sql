-- steps: the finished steps of each process: steps marked by hand (b = 1), else steps found by an adapter
-- (0), else the iterations of a loader (2).  If another optimizer steps after an adapter found the end of the
-- step (3), the step ends at the last optimizer's end.
WITH told AS (
    SELECT
        process,
        thread,
        index,
        b,
        start_ns,
        start_ns + duration_ns AS end_ns,
        CASE b WHEN 1 THEN 0 WHEN 0 THEN 1 WHEN 3 THEN 1 ELSE 2 END AS origin
    FROM spans
    WHERE kind = 'step' AND duration_ns IS NOT NULL
),
chosen AS (
    SELECT *
    FROM told
    QUALIFY origin = min(origin) OVER (PARTITION BY process)
),
counted AS (
    SELECT
        *,
        sum(CASE WHEN b = 3 THEN 0 ELSE 1 END) OVER (
            PARTITION BY process, thread ORDER BY start_ns ROWS UNBOUNDED PRECEDING
        ) AS place
    FROM chosen
)
SELECT
    process,
    thread,
    arg_min(index, start_ns) AS index,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns
FROM counted
GROUP BY process, thread, place
