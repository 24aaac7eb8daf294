-- What tiers were measured to give at most, by mount: the best of each op.
SELECT mount, any_value(kind) AS kind, op, max(bandwidth_bps) AS bandwidth_bps
FROM ceilings
GROUP BY mount, op
ORDER BY mount, op
