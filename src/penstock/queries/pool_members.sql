-- pool_members: for each main process that has pooled waits, the processes whose threads may make a
-- batch: itself, and its loader's workers.
SELECT main, process
FROM roles
WHERE role <> 'other' AND main IN (SELECT process FROM waits WHERE is_pooled)
