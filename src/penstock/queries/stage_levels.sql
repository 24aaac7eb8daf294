-- stage_levels: bandwidth by how many read at once, as `penstock ceiling` measured it with files of the
-- run: of the mount that was measured most often.  Empty: not measured.
WITH cold AS (
    SELECT mount, threads, bandwidth_bps
    FROM ceilings
    WHERE op = 'read' AND "order" = 'sequential' AND (is_cold OR kind IN ('tmpfs', 'ramfs'))
        AND bandwidth_bps > 0
),
chosen AS (
    SELECT mount FROM cold GROUP BY mount ORDER BY count(*) DESC, mount LIMIT 1
)
SELECT threads AS level, max(bandwidth_bps) AS bandwidth_bps
FROM cold
WHERE mount = (SELECT mount FROM chosen)
GROUP BY threads
ORDER BY threads
