-- Loaders that gave batches to main processes, by the loader's top-level package, as noted by adapters; also torch
-- if fetches were recorded, as only torch has fetches, and tensorflow if a graph asked for batches (graph_waits).
SELECT n.value AS loader
FROM notes AS n
JOIN mains AS m ON m.process = n.process
WHERE n.key = 'loader'
UNION
SELECT 'torch' WHERE EXISTS (SELECT 1 FROM fetches)
UNION
SELECT 'tensorflow' WHERE EXISTS (SELECT 1 FROM graph_waits)
ORDER BY loader
