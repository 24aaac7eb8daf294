-- taken_in: bytes that each thread took in during the training stretch of the main process: evidence that the thread
-- delivers data.
--   main   the main process: the thread's own process, or the starter of the worker or program
--   bytes  bytes read from data files, pipes and sockets, bytes received, and mapped pages awaited by the thread
--   stream_bytes  part of bytes: from pipes and sockets
WITH members AS (
    SELECT m.process AS main, m.process, m.first_ns, m.last_ns FROM mains AS m
    UNION ALL
    SELECT m.process, r.process, m.first_ns, m.last_ns
    FROM mains AS m
    JOIN roles AS r ON r.main = m.process AND r.process <> m.process
    UNION ALL
    SELECT m.process, s.process, m.first_ns, m.last_ns
    FROM mains AS m
    JOIN started AS s ON s.starter = m.process
)
SELECT
    m.main,
    g.process,
    g.thread,
    CAST(sum(g.bytes) AS BIGINT) AS bytes,
    CAST(sum(g.stream_bytes) AS BIGINT) AS stream_bytes
FROM gains AS g
JOIN members AS m ON m.process = g.process
WHERE g.start_ns >= m.first_ns AND g.start_ns < m.last_ns
GROUP BY m.main, g.process, g.thread
