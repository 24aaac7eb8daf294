-- pool_makers: for each pooled wait, the longest compute time of a thread that delivers data (see taken_in).  Of a wait
-- reported by a loader only threads of other processes count (the CPU time of the main process is measured), and only
-- after the thread's first data from a file or the network: before, a worker that starts imports modules.
-- Compute time is the time in which the thread was in no blocking call, or waited only for the interpreter lock.
-- Processes that made other batches (pool_bystanders) are excluded.  A thread counts from the thread's first call or
-- standstill to the last.
WITH pools AS (
    SELECT s.stretch_id, s.main, s.from_ns, s.to_ns, w.is_inferred
    FROM stretches AS s
    JOIN waits AS w ON w.wait_id = s.wait_id
    WHERE s.kind = 'pool'
),
makers AS (
    SELECT t.main, t.process, t.thread
    FROM taken_in AS t
    JOIN mains AS m ON m.process = t.main
    JOIN pool_members AS b ON b.main = t.main AND b.process = t.process
    WHERE t.bytes >= 1024 AND (t.process <> m.process OR t.thread <> m.thread)
        AND t.main IN (SELECT main FROM pools)
),
-- Pipes are excluded: a spawned worker reads its own program from a pipe.
begun AS (
    SELECT process, thread, min(start_ns) AS first_ns
    FROM gains
    WHERE stream_bytes = 0 OR is_received
    GROUP BY process, thread
),
held AS (
    SELECT s.process, s.thread, s.start_ns, s.end_ns
    FROM standstills AS s
    JOIN (SELECT DISTINCT process, thread FROM makers) AS m ON m.process = s.process AND m.thread = s.thread
    WHERE s.what <> 'interpreter lock'
    UNION ALL
    SELECT e.process, e.thread, e.start_ns, e.start_ns + e.duration_ns
    FROM file_waits AS e
    JOIN (SELECT DISTINCT process, thread FROM makers) AS m ON m.process = e.process AND m.thread = e.thread
    WHERE e.duration_ns IS NOT NULL
),
summed AS (
    SELECT
        *,
        sum(end_ns - start_ns) OVER (PARTITION BY process, thread ORDER BY start_ns, end_ns)
            - (end_ns - start_ns) AS before_ns
    FROM held
),
lasting AS (
    SELECT process, thread, min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM held GROUP BY process, thread
),
tried AS (
    SELECT p.stretch_id, m.process, m.thread, p.from_ns, p.to_ns
    FROM pools AS p
    JOIN makers AS m ON m.main = p.main
    JOIN lasting AS l ON l.process = m.process AND l.thread = m.thread
    LEFT JOIN begun AS g ON g.process = m.process AND g.thread = m.thread
    LEFT JOIN pool_bystanders AS b ON b.stretch_id = p.stretch_id AND b.process = m.process
    WHERE l.first_ns <= p.from_ns AND l.last_ns >= p.to_ns AND b.process IS NULL
        AND (p.is_inferred OR (m.process <> p.main AND g.first_ns <= p.from_ns))
),
busy AS (
    SELECT
        t.stretch_id,
        t.to_ns - t.from_ns
            - (e.before_ns + least(t.to_ns, e.end_ns) - e.start_ns)
            + (b.before_ns + least(t.from_ns, b.end_ns) - b.start_ns) AS ns
    FROM tried AS t
    ASOF JOIN summed AS b ON b.process = t.process AND b.thread = t.thread AND b.start_ns <= t.from_ns
    ASOF JOIN summed AS e ON e.process = t.process AND e.thread = t.thread AND e.start_ns <= t.to_ns
)
SELECT stretch_id, max(ns) AS cpu_ns FROM busy WHERE ns > 0 GROUP BY stretch_id
