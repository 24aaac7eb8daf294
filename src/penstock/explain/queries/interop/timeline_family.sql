-- timeline_family: the processes with rows in a timeline: processes with one of `pids`, and all their
-- descendants; all processes of the run if none has such a pid.
WITH RECURSIVE family AS (
    SELECT process FROM processes WHERE list_contains(getvariable('pids'), pid)
    UNION ALL
    SELECT p.process FROM processes AS p JOIN family AS f ON p.parent = f.process
)
SELECT process FROM processes
WHERE process IN (SELECT process FROM family) OR NOT EXISTS (SELECT 1 FROM family)
