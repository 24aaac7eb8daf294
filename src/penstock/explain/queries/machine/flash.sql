-- File systems on NVMe of a node of the run, as noted when the recording began; the most free space first.
--   mount, device, free_bytes
SELECT
    split_part(value, chr(9), 1) AS mount,
    min(split_part(value, chr(9), 2)) AS device,
    min(TRY_CAST(split_part(value, chr(9), 3) AS BIGINT)) AS free_bytes
FROM notes
WHERE key = 'flash' AND TRY_CAST(split_part(value, chr(9), 3) AS BIGINT) IS NOT NULL
GROUP BY 1
ORDER BY free_bytes DESC, mount
