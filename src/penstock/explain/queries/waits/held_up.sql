-- held_up: stretches of data waits, checkpoints and own calls with a weight other than the mean over main processes:
-- see shares.
SELECT s.stretch_id, h.share
FROM stretches AS s
JOIN shares AS h ON h.wait_id = s.wait_id
WHERE h.share <> 1
UNION ALL
SELECT s.stretch_id, h.share
FROM stretches AS s
JOIN shares AS h ON h.save_id = s.save_id
WHERE h.share <> 1
UNION ALL
SELECT c.stretch_id, sum(c.ns * h.share) / nullif(sum(c.ns), 0) AS share
FROM own_calls AS c
JOIN shares AS h ON h.calls_id = c.calls_id
GROUP BY c.stretch_id
HAVING sum(c.ns * h.share) <> sum(c.ns)
