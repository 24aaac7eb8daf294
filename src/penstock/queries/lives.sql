-- lives: the recorded life of each process, from the start of its log to its end; a process without
-- an end (killed, still running) lives until the last thing its log knows.
SELECT
    p.process,
    p.pid,
    p.host,
    p.parent,
    p.start_ns,
    greatest(p.start_ns, coalesce(p.end_ns, greatest(s.last_ns, c.last_ns), p.start_ns)) AS end_ns
FROM processes AS p
LEFT JOIN (
    SELECT process, max(start_ns + coalesce(duration_ns, 0)) AS last_ns FROM spans GROUP BY process
) AS s ON s.process = p.process
LEFT JOIN (
    SELECT process, last_ns FROM process_totals
) AS c ON c.process = p.process
