-- program_starts: for each inferred wait without a known ending thread, the time in which a program was starting that
-- the waiting process started directly: from the fork until the recorder had started in the program.  The kernel
-- loads the program and the program's libraries, and the recorder starts.
--   ns  a lower bound: of several starts in a wait only the last counts
WITH pools AS (
    SELECT s.stretch_id, s.main, s.from_ns, s.to_ns
    FROM stretches AS s
    JOIN waits AS w ON w.wait_id = s.wait_id
    WHERE s.kind = 'pool' AND w.is_inferred
),
forks AS (
    SELECT e.process, e."result" AS pid, e.start_ns
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE o.op = 'fork' AND e.errno = 0 AND e.process IN (SELECT main FROM pools)
),
starting AS (
    SELECT p.parent AS main, f.start_ns AS from_ns, p.start_ns AS to_ns
    FROM processes AS p
    ASOF JOIN forks AS f ON f.process = p.parent AND f.pid = p.pid AND f.start_ns <= p.start_ns
    WHERE p.origin <> 'fork'
)
SELECT p.stretch_id, least(p.to_ns, s.to_ns) - greatest(p.from_ns, s.from_ns) AS ns
FROM pools AS p
ASOF JOIN starting AS s ON s.main = p.main AND s.from_ns <= p.to_ns
WHERE least(p.to_ns, s.to_ns) > greatest(p.from_ns, s.from_ns)
