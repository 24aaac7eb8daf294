-- caches: stretches of a beginning in which a process makes a file of 1 MiB or more and finishes the file
-- before the training: a cache of a data set (Hugging Face `map`, an index, a copy on a local disk).
--   from_ns  the open before the first write of the file; to_ns: the end of the last write
--   is_own   made by the thread of the beginning; else by another thread or process of the job
-- Checkpoints do not count, nor do logs that are still written after the beginning.
WITH bytes AS (
    SELECT
        e.process,
        e.thread,
        e.file,
        min(e.start_ns) AS first_ns,
        max(e.start_ns + coalesce(e.duration_ns, 0)) AS last_ns,
        sum(e.moved_bytes) AS bytes
    FROM file_calls AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE o.op_group = 'write' AND o.is_access AND e.path_class IN ('output', 'data')
    GROUP BY e.process, e.thread, e.file
    HAVING sum(e.moved_bytes) >= 1048576
),
made AS (
    SELECT w.*, b.process AS main, w.process = b.process AND w.thread = b.thread AS is_own
    FROM bytes AS w
    JOIN roles AS r ON r.process = w.process
    JOIN beginnings AS b ON b.process = w.process OR (r.role = 'other' AND NOT b.is_life)
    WHERE w.first_ns >= b.from_ns AND w.last_ns <= b.to_ns
        AND NOT EXISTS (
            SELECT 1 FROM timed_spans AS s
            WHERE s.kind = 'span' AND s.name IN ('checkpoint', 'restore')
                AND s.process = w.process AND s.thread = w.thread
                AND w.first_ns >= s.start_ns AND w.first_ns < s.end_ns
        )
),
opened AS (
    SELECT m.process, m.thread, m.file, max(e.start_ns) AS ns
    FROM made AS m
    JOIN file_calls AS e ON e.process = m.process AND e.thread = m.thread AND e.file = m.file
    WHERE e.op_number IN (SELECT op_number FROM ops WHERE op IN ('open', 'fopen', 'freopen'))
        AND e.start_ns <= m.first_ns
    GROUP BY m.process, m.thread, m.file
)
SELECT
    m.main AS process,
    m.file,
    m.is_own,
    greatest(b.from_ns, coalesce(o.ns, m.first_ns)) AS from_ns,
    m.last_ns AS to_ns,
    m.bytes
FROM made AS m
JOIN beginnings AS b ON b.process = m.main
LEFT JOIN opened AS o ON o.process = m.process AND o.thread = m.thread AND o.file = m.file
