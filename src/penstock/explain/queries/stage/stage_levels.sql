-- stage_levels: bandwidth by number of simultaneous readers, as measured by `penstock ceiling` with files of
-- the run, on the mount that holds the files; with several mounts, on the mount with the most time in the files.
-- Empty: not measured.
WITH cold AS (
    SELECT mount, threads, bandwidth_bps
    FROM ceilings
    WHERE op = 'read' AND "order" = 'sequential' AND (is_cold OR kind IN ('tmpfs', 'ramfs'))
        AND bandwidth_bps > 0
),
chosen AS (
    SELECT mount
    FROM stage_mounts
    WHERE mount IN (SELECT mount FROM cold)
    ORDER BY time_s DESC, mount
    LIMIT 1
)
SELECT threads AS level, max(bandwidth_bps) AS bandwidth_bps
FROM cold
WHERE mount = (SELECT mount FROM chosen)
GROUP BY threads
ORDER BY threads
