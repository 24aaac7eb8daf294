-- Loaders that gave batches to main processes, by the top-level package that they are of: as adapters note
-- it; torch also where fetches were recorded, which it alone has, and tensorflow where graphs asked.
SELECT n.value AS loader
FROM notes AS n
JOIN mains AS m ON m.process = n.process
WHERE n.key = 'loader'
UNION
SELECT 'torch' WHERE EXISTS (SELECT 1 FROM fetches)
UNION
SELECT 'tensorflow' WHERE EXISTS (SELECT 1 FROM graph_waits)
ORDER BY loader
