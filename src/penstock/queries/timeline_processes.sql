-- The processes of a run as a timeline shows them: mains first, then workers, then others, by start.
--   worker  number of the loader's worker; NULL: it is none
WITH workers AS (
    SELECT process, min(index) AS worker FROM spans WHERE kind = 'span' AND name = 'worker' GROUP BY process
)
SELECT
    p.process,
    p.pid,
    p.host,
    p.rank,
    CASE
        WHEN m.process IS NOT NULL THEN 'main'
        WHEN w.process IS NOT NULL THEN 'worker'
        ELSE 'other'
    END AS role,
    w.worker,
    p.command,
    l.start_ns,
    l.end_ns
FROM processes AS p
JOIN lives AS l ON l.process = p.process
LEFT JOIN mains AS m ON m.process = p.process
LEFT JOIN workers AS w ON w.process = p.process
ORDER BY list_position(['main', 'worker', 'other'], role), l.start_ns, p.process
