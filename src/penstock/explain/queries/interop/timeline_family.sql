-- timeline_family: the processes with rows in a timeline: processes with a pid in `pids`, and all
-- descendants; all processes of the run if no process has a pid in `pids`.
WITH RECURSIVE family AS (
    SELECT process FROM processes WHERE list_contains(getvariable('pids'), pid)
    UNION ALL
    SELECT p.process FROM processes AS p JOIN family AS f ON p.parent = f.process
)
SELECT process FROM processes
WHERE process IN (SELECT process FROM family) OR NOT EXISTS (SELECT 1 FROM family)
