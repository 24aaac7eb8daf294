-- pool_bystanders: processes that make batches for the main process, but not the batch of the pooled wait.
-- The maker of a batch is the process that wrote last into a pipe or local socket before the wait ended, at most 5 ms
-- before: on a busy machine a woken thread waits 5 ms for a CPU.  Makers of other batches of the main process are
-- bystanders.
WITH pools AS (
    SELECT stretch_id, main, from_ns, to_ns FROM stretches WHERE kind = 'pool'
),
writes AS (
    SELECT m.main, e.process, e.start_ns
    FROM events_raw AS e
    JOIN pool_members AS m ON m.process = e.process AND m.main <> m.process
    JOIN files AS f ON f.file = e.file
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE (f.kind = 'pipe' OR f.path = 'socket:unix') AND o.is_access AND o.op_group = 'write'
        AND e.errno = 0
),
makers AS (
    SELECT p.stretch_id, p.main, w.process
    FROM pools AS p
    ASOF JOIN writes AS w ON w.main = p.main AND w.start_ns <= p.to_ns
    WHERE w.start_ns >= greatest(p.from_ns, p.to_ns - 5000000)
)
SELECT DISTINCT m.stretch_id, o.process
FROM makers AS m
JOIN makers AS o ON o.main = m.main AND o.process <> m.process
