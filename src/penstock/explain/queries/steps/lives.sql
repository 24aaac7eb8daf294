-- lives: the recorded life of each process, from the start of its log to its end.  The life of a process without
-- an end lasts until the last event in the log; of a running process, until the log was read: a present
-- wait counts up to now.
SELECT
    p.process,
    p.pid,
    p.host,
    p.parent,
    p.start_ns,
    greatest(p.start_ns, coalesce(p.end_ns, greatest(p.read_ns, s.last_ns, c.last_ns), p.start_ns)) AS end_ns
FROM processes AS p
LEFT JOIN (
    SELECT process, max(start_ns + coalesce(duration_ns, 0)) AS last_ns FROM spans GROUP BY process
) AS s ON s.process = p.process
LEFT JOIN (
    SELECT process, last_ns FROM process_totals
) AS c ON c.process = p.process
