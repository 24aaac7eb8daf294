-- Saves that had returned and failed afterwards, in the background, where their caller learned of it (the
-- first 100).
SELECT process, start_ns / 1e9 AS start_s, CAST(nullif(a, 0) AS INTEGER) AS errno
FROM spans
WHERE kind = 'span' AND name = 'save failed' AND duration_ns IS NOT NULL
ORDER BY start_ns, process
LIMIT 100
