-- pool_members: for each main process that has waits of which nobody told who ended them, the processes whose
-- threads may have: itself and its loader's workers; of inferred ones also the programs that it started, and
-- theirs.
SELECT main, process
FROM roles
WHERE role <> 'other' AND main IN (SELECT process FROM waits WHERE is_pooled AND made_by IS NULL)
UNION
SELECT starter, process
FROM started
WHERE starter IN (SELECT process FROM waits WHERE is_inferred AND made_by IS NULL)
