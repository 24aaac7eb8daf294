-- pool_stands: of pooled waits without a known ending thread, the time in which a thread of the pool waited for
-- a network answer, if the answer came before the end of the pooled wait.  Excluded are the waiting thread
-- and makers of other batches (pool_bystanders).  A wait for a recorded process of the job (own_endpoints) is no cause:
-- the other process's work is, and in a pool of processes the other process may make batches too (Ray).
-- By phase and endpoint: an instant counts for the answer with the earliest begin of waiting.
-- Threads that wait for the network at all times (of a server, of a monitor) get no answer in most pooled waits.
WITH pools AS (
    SELECT stretch_id, main, thread, from_ns, to_ns FROM stretches WHERE kind = 'pool'
),
answers AS (
    SELECT m.main, s.process, s.thread, s.phase, s.endpoint, s.start_ns, s.end_ns
    FROM standstills AS s
    JOIN pool_members AS m ON m.process = s.process
    LEFT JOIN own_endpoints AS o ON o.endpoint = s.endpoint
    WHERE s.what = 'network' AND s.is_answered AND o.endpoint IS NULL
),
met AS (
    SELECT p.stretch_id, a.phase, a.endpoint, greatest(a.start_ns, p.from_ns) AS from_ns, a.end_ns AS to_ns
    FROM answers AS a
    ASOF JOIN pools AS p ON p.main = a.main AND p.from_ns <= a.end_ns
    LEFT JOIN pool_bystanders AS b ON b.stretch_id = p.stretch_id AND b.process = a.process
    WHERE a.end_ns <= p.to_ns AND (a.process <> p.main OR a.thread <> p.thread) AND b.process IS NULL
),
passed AS (
    SELECT
        *,
        coalesce(max(to_ns) OVER (
            PARTITION BY stretch_id ORDER BY from_ns, to_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), from_ns) AS passed_ns
    FROM met
)
SELECT stretch_id, phase, endpoint, sum(greatest(0, to_ns - greatest(from_ns, passed_ns))) AS network_ns
FROM passed
GROUP BY stretch_id, phase, endpoint
