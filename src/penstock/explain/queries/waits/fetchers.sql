-- fetchers: programs, such as curl, started by a process directly or by a shell, that received more bytes
-- from the network than the program sent.
--   main  the process that started the program;  process: the program
WITH trained AS (
    SELECT DISTINCT process FROM spans WHERE kind = 'step' OR name IN ('worker', 'loader', 'data wait')
),
receivers AS (
    SELECT p.process, p.parent
    FROM processes AS p
    JOIN connections AS c ON c.process = p.process
    WHERE p.parent IS NOT NULL AND p.origin <> 'fork' AND NOT c.is_accepted
        AND p.process NOT IN (SELECT process FROM trained)
    GROUP BY p.process, p.parent
    HAVING sum(c.received_bytes) > sum(c.sent_bytes)
)
SELECT parent AS main, process FROM receivers
UNION
SELECT p.parent, r.process
FROM receivers AS r
JOIN processes AS p ON p.process = r.parent
WHERE p.parent IS NOT NULL AND p.process NOT IN (SELECT process FROM trained)
