-- Loaded checkpoints, one row per process (the 100 longest), until the end of the process's first step.  Failed loads
-- (ended in an exception) have a separate row.
--   loads       number of load calls; 0: weight files were only mapped
--   duration_s  time in load calls, in putting the loaded values into a model, and in page faults of the files
--               outside both
--   faulted_s   part of duration_s: page faults outside both
--   read_bytes  bytes read by the loading thread within duration_s
--   path, size_bytes  the largest file read or mapped within duration_s
WITH sums AS (
    SELECT
        r.process,
        r.is_failed,
        count(*) FILTER (WHERE r.kind = 'restore') AS loads,
        min(r.start_ns) AS start_ns,
        sum(r.end_ns - r.start_ns) AS ns,
        coalesce(sum(r.end_ns - r.start_ns) FILTER (WHERE r.kind = 'page fault'), 0) AS faulted_ns
    FROM restored AS r
    GROUP BY r.process, r.is_failed
    ORDER BY ns DESC, r.process, r.is_failed
    LIMIT 100
),
called AS (
    SELECT
        r.process,
        r.is_failed,
        e.file,
        sum(e.moved_bytes) FILTER (WHERE o.op_group = 'read' AND o.is_access AND o.layer = 'posix')
            AS read_bytes
    FROM (
        SELECT * FROM file_calls
        WHERE process IN (SELECT process FROM restored) AND start_ns < getvariable('begun_ns')
    ) AS e
    ASOF JOIN restored AS r
        ON r.process = e.process AND r.thread = e.thread AND r.start_ns <= e.start_ns
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE e.path_class IN ('data', 'output') AND e.start_ns < r.end_ns
    GROUP BY r.process, r.is_failed, e.file
),
mapped AS (
    SELECT r.process, r.is_failed, f.file
    FROM waited_faults AS f
    ASOF JOIN restored AS r
        ON r.process = f.process AND r.thread = f.thread AND r.start_ns <= f.start_ns
    WHERE f.path_class IN ('data', 'output') AND f.start_ns < r.end_ns
        AND f.start_ns < getvariable('begun_ns')
    GROUP BY r.process, r.is_failed, f.file
),
meant AS (
    SELECT process, is_failed, file FROM called UNION SELECT process, is_failed, file FROM mapped
),
largest AS (
    SELECT
        n.process,
        n.is_failed,
        arg_max(f.path, coalesce(f.size_bytes, 0)) AS path,
        max(f.size_bytes) AS size_bytes
    FROM meant AS n
    JOIN files AS f ON f.file = n.file
    WHERE f.kind = 'regular'
    GROUP BY n.process, n.is_failed
)
SELECT
    s.process,
    s.loads,
    s.start_ns / 1e9 AS start_s,
    s.ns / 1e9 AS duration_s,
    s.faulted_ns / 1e9 AS faulted_s,
    CAST(coalesce(c.read_bytes, 0) AS BIGINT) AS read_bytes,
    l.path,
    l.size_bytes,
    s.is_failed
FROM sums AS s
LEFT JOIN (
    SELECT process, is_failed, sum(read_bytes) AS read_bytes FROM called GROUP BY process, is_failed
) AS c
    ON c.process = s.process AND c.is_failed = s.is_failed
LEFT JOIN largest AS l ON l.process = s.process AND l.is_failed = s.is_failed
ORDER BY s.start_ns, s.process, s.is_failed
