-- timeline_family: the processes whose rows a timeline has: those with one of `pids` and all that they
-- started; all of the run where none of them is in it.
WITH RECURSIVE family AS (
    SELECT process FROM processes WHERE list_contains(getvariable('pids'), pid)
    UNION ALL
    SELECT p.process FROM processes AS p JOIN family AS f ON p.parent = f.process
)
SELECT process FROM processes
WHERE process IN (SELECT process FROM family) OR NOT EXISTS (SELECT 1 FROM family)
