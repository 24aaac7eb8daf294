-- pool_members: for each main process with waits of an unknown ending thread, the processes that may own the
-- thread: the main process and the workers of the main process's loader; for inferred waits also the processes started
-- by the main process, and the processes started in turn by those; for other waits only such processes as may have sent
-- batches (torchdata's nodes make batches in processes that no adapter knows): what the process wrote to pipes and
-- local sockets is at most what the main process read from such, and the process did not end before the first of these
-- waits; and programs that fetch for the main process.
WITH pooled AS (
    SELECT process, min(start_ns) AS first_ns
    FROM waits
    WHERE is_pooled AND made_by IS NULL
    GROUP BY process
),
passed AS (
    SELECT
        e.process,
        sum(CASE WHEN o.op_group = 'write' THEN e.moved_bytes ELSE 0 END) AS written_bytes,
        sum(CASE WHEN o.op_group = 'read' THEN e.moved_bytes ELSE 0 END) AS read_bytes
    FROM events_raw AS e
    JOIN files AS f ON f.file = e.file
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE (f.kind = 'pipe' OR f.path = 'socket:unix') AND o.is_access AND e.errno = 0
    GROUP BY e.process
)
SELECT main, process
FROM roles
WHERE role <> 'other' AND main IN (SELECT process FROM pooled)
UNION
SELECT starter, process
FROM started
WHERE starter IN (SELECT process FROM waits WHERE is_inferred AND made_by IS NULL)
UNION
SELECT s.starter, s.process
FROM started AS s
JOIN passed AS w ON w.process = s.process
JOIN passed AS r ON r.process = s.starter
JOIN pooled AS a ON a.process = s.starter
JOIN processes AS p ON p.process = s.process
WHERE w.written_bytes > 0 AND w.written_bytes <= r.read_bytes AND coalesce(p.end_ns, a.first_ns) >= a.first_ns
UNION
SELECT main, process
FROM fetchers
WHERE main IN (SELECT process FROM pooled)
