-- lives: the recorded life of each process, from the start of the log to the end of the process.  Without a recorded
-- end, the life lasts until the last event in the log.  The life of a running process lasts until the log was read,
-- so a wait in progress counts up to now.
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
