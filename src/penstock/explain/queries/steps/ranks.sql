-- The values of training for each main process, a row per main process (the first 10,000).
--   barrier_s   time in spans with the name 'barrier', on the step thread (see mains)
--   own_s       the rest of the wall time: neither data wait, checkpoint nor barrier; includes waits of ranks
--               for each other in a collective, if the collective is not known
--   lost_s      time that all main processes lost to the data waits, blocking checkpoints and calls_s of the row's
--               process; if main processes are not known to wait for each other, the part of the process in the mean
--               (see shares)
--   calls_s     part of own_s: file calls of the step thread, as in training
--   read_bytes  bytes of data files read by the process and by the workers of the process's loader, counted in
--               the layer (POSIX or STDIO) with more bytes
WITH parts AS (
    SELECT
        m.process,
        m.steps,
        m.wall_ns,
        coalesce(w.ns, 0) AS wait_ns,
        coalesce(s.ns, 0) AS save_ns,
        coalesce(w.lost_ns, 0) + coalesce(s.lost_ns, 0) AS lost_ns,
        b.ns AS barrier_ns
    FROM mains AS m
    LEFT JOIN (
        SELECT
            w.process,
            sum(w.end_ns - w.start_ns) AS ns,
            sum((w.end_ns - w.start_ns) * coalesce(h.share, 1)) AS lost_ns
        FROM waits AS w
        LEFT JOIN shares AS h ON h.wait_id = w.wait_id
        WHERE w.in_wall
        GROUP BY w.process
    ) AS w ON w.process = m.process
    LEFT JOIN (
        SELECT
            s.process,
            sum(s.end_ns - s.start_ns) AS ns,
            sum((s.end_ns - s.start_ns) * coalesce(h.share, 1)) AS lost_ns
        FROM saves AS s
        LEFT JOIN shares AS h ON h.save_id = s.save_id
        WHERE s.blocks
        GROUP BY s.process
    ) AS s ON s.process = m.process
    LEFT JOIN barriers AS b ON b.process = m.process
)
SELECT
    m.process,
    p.rank,
    p.host,
    CAST(m.steps AS BIGINT) AS steps,
    m.wall_ns / 1e9 AS wall_s,
    m.wait_ns / 1e9 AS data_wait_s,
    m.save_ns / 1e9 AS checkpoint_block_s,
    m.barrier_ns / 1e9 AS barrier_s,
    greatest(0, m.wall_ns - m.wait_ns - m.save_ns - coalesce(m.barrier_ns, 0)) / 1e9 AS own_s,
    CAST(coalesce(r.bytes, 0) AS BIGINT) AS read_bytes,
    (m.lost_ns + coalesce(c.ns * u.share, c.ns, 0)) / 1e9 / (SELECT count(*) FROM mains) AS lost_s,
    coalesce(c.ns, 0) / 1e9 AS calls_s
FROM parts AS m
JOIN processes AS p ON p.process = m.process
LEFT JOIN main_reads AS r ON r.main = m.process
LEFT JOIN (
    SELECT s.process, sum(c.ns * f.fit) AS ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    JOIN fits AS f ON f.stretch_id = c.stretch_id
    WHERE s.kind = 'step'
    GROUP BY s.process
) AS c ON c.process = m.process
LEFT JOIN (
    SELECT o.process, sum(o.ns * h.share) / nullif(sum(o.ns), 0) AS share
    FROM own_calls AS o
    JOIN shares AS h ON h.calls_id = o.calls_id
    GROUP BY o.process
) AS u ON u.process = m.process
ORDER BY p.rank, m.process
LIMIT 10000
