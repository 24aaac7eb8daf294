-- started: the programs that a process which trains or fetches started, and those that these started: what they
-- write into a pipe, it may wait for.
WITH others AS (
    SELECT l.process, l.parent
    FROM lives AS l
    JOIN roles AS r ON r.process = l.process AND r.role = 'other'
    WHERE l.parent IS NOT NULL
)
SELECT process, parent AS starter FROM others
UNION ALL
SELECT o.process, p.parent
FROM others AS o
JOIN others AS p ON p.process = o.parent
