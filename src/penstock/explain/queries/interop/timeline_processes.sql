-- The processes of a run in a timeline's order: main processes, then workers, then others, each group by start.
--   worker  number of the loader's worker; NULL: the process is no worker
SELECT p.process, p.pid, p.host, p.rank, r.role, r.worker, p.command, l.start_ns, l.end_ns
FROM processes AS p
JOIN lives AS l ON l.process = p.process
JOIN roles AS r ON r.process = p.process
ORDER BY list_position(['main', 'worker', 'other'], r.role), l.start_ns, p.process
