-- Saves that failed in the background after the save call had returned, recorded when the caller learned of
-- the failure (the first 100).
SELECT process, start_ns / 1e9 AS start_s, CAST(nullif(a, 0) AS INTEGER) AS errno
FROM spans
WHERE kind = 'span' AND name = 'save failed' AND duration_ns IS NOT NULL
ORDER BY start_ns, process
LIMIT 100
