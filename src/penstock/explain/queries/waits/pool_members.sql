-- pool_members: for each main process with waits of an unknown ending thread, the processes that may own the
-- thread: the main process and the workers of the main process's loader; for inferred waits also the programs started
-- by the main process, and the programs started in turn by those programs; and programs that fetch for the main
-- process.
SELECT main, process
FROM roles
WHERE role <> 'other' AND main IN (SELECT process FROM waits WHERE is_pooled AND made_by IS NULL)
UNION
SELECT starter, process
FROM started
WHERE starter IN (SELECT process FROM waits WHERE is_inferred AND made_by IS NULL)
UNION
SELECT main, process
FROM fetchers
WHERE main IN (SELECT process FROM waits WHERE is_pooled AND made_by IS NULL)
