-- Main processes, one row each (the first 10,000): what training says as a mean, for each of them.
SELECT
    m.process,
    p.rank,
    p.host,
    CAST(m.steps AS BIGINT) AS steps,
    m.wall_ns / 1e9 AS wall_s,
    coalesce(w.ns, 0) / 1e9 AS data_wait_s,
    coalesce(s.ns, 0) / 1e9 AS checkpoint_block_s
FROM mains AS m
JOIN processes AS p ON p.process = m.process
LEFT JOIN (
    SELECT process, sum(end_ns - start_ns) AS ns FROM waits WHERE in_wall GROUP BY process
) AS w ON w.process = m.process
LEFT JOIN (
    SELECT process, sum(end_ns - start_ns) AS ns FROM saves WHERE blocks GROUP BY process
) AS s ON s.process = m.process
ORDER BY p.rank, m.process
LIMIT 10000
