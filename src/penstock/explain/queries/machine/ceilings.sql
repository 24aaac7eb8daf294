-- Highest measured bandwidth of the tiers, by mount and op.  Disk reads answered from the page cache measure memory
-- and do not count.
SELECT mount, any_value(kind) AS kind, op, max(bandwidth_bps) AS bandwidth_bps
FROM ceilings
WHERE is_cold OR kind IN ('tmpfs', 'ramfs')
GROUP BY mount, op
ORDER BY mount, op
