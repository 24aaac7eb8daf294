-- pool_bystanders: processes that make batches for the main process, but not the batch of the pooled wait.
-- The maker of a batch is the process that wrote last into a pipe or local socket before the main process had read
-- the batch from one, or, without such a read, before the wait ended: then at most 5 ms before, as a woken thread
-- waits 5 ms for a CPU on a busy machine.  Makers of other batches of the main process are bystanders.
WITH pools AS (
    SELECT stretch_id, main, from_ns, to_ns FROM stretches WHERE kind = 'pool'
),
passed AS (
    SELECT e.process, o.op_group, e.start_ns, e.start_ns + e.duration_ns AS end_ns, e.moved_bytes AS bytes
    FROM events_raw AS e
    JOIN files AS f ON f.file = e.file
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE (f.kind = 'pipe' OR f.path = 'socket:unix') AND o.is_access AND e.errno = 0
),
writes AS (
    SELECT m.main, e.process, e.start_ns
    FROM passed AS e
    JOIN pool_members AS m ON m.process = e.process AND m.main <> m.process
    WHERE e.op_group = 'write'
),
-- Smaller reads may be of anything.
reads AS (
    SELECT process AS main, end_ns
    FROM passed
    WHERE op_group = 'read' AND bytes >= 1024 AND process IN (SELECT main FROM pools)
),
ends AS (
    SELECT
        p.stretch_id,
        p.main,
        CASE WHEN r.end_ns >= p.from_ns THEN r.end_ns ELSE p.to_ns END AS to_ns,
        CASE WHEN r.end_ns >= p.from_ns THEN p.from_ns ELSE greatest(p.from_ns, p.to_ns - 5000000) END AS from_ns
    FROM pools AS p
    ASOF LEFT JOIN reads AS r ON r.main = p.main AND r.end_ns <= p.to_ns
),
makers AS (
    SELECT e.stretch_id, e.main, w.process
    FROM ends AS e
    ASOF JOIN writes AS w ON w.main = e.main AND w.start_ns <= e.to_ns
    WHERE w.start_ns >= e.from_ns
)
SELECT DISTINCT m.stretch_id, o.process
FROM makers AS m
JOIN makers AS o ON o.main = m.main AND o.process <> m.process
