-- What tiers were measured to give at most, by mount: the best of each op.  What was read from memory on
-- a disk is the memory's speed and does not count.
SELECT mount, any_value(kind) AS kind, op, max(bandwidth_bps) AS bandwidth_bps
FROM ceilings
WHERE is_cold OR kind IN ('tmpfs', 'ramfs')
GROUP BY mount, op
ORDER BY mount, op
