-- held_up: stretches of waits and checkpoints that do not count as the mean over main processes does: see shares.
SELECT s.stretch_id, h.share
FROM stretches AS s
JOIN shares AS h ON h.wait_id = s.wait_id
WHERE h.share <> 1
UNION ALL
SELECT s.stretch_id, h.share
FROM stretches AS s
JOIN shares AS h ON h.save_id = s.save_id
WHERE h.share <> 1
