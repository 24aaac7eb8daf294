-- started: programs started by a process that trains or fetches, and programs started in turn by such programs.  The
-- process may wait for data that a started program writes into a pipe.
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
