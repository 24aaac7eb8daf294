-- Loaders that gave batches to main processes, by their top-level package, as noted by adapters; torch also
-- if fetches were recorded, as only torch has fetches, and tensorflow if graphs asked.
SELECT n.value AS loader
FROM notes AS n
JOIN mains AS m ON m.process = n.process
WHERE n.key = 'loader'
UNION
SELECT 'torch' WHERE EXISTS (SELECT 1 FROM fetches)
UNION
SELECT 'tensorflow' WHERE EXISTS (SELECT 1 FROM graph_waits)
ORDER BY loader
