-- locked_calls: for each main process the time in which the thread that takes the steps waited for the interpreter lock
-- while another thread of the process was in a stdio call of a millisecond or more on a data file.  A C library may
-- hold the lock during the stdio call (numpy.fromfile does).  Whether the library held the lock is not recorded, so the
-- time may be a wait for storage.
WITH calls AS (
    SELECT e.process, e.start_ns, e.start_ns + e.duration_ns AS end_ns
    FROM file_calls AS e
    JOIN mains AS m ON m.process = e.process
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE o.layer = 'stdio' AND e.thread <> m.thread AND e.duration_ns >= 1000000 AND e.path_class = 'data'
)
SELECT s.process, sum(least(s.end_ns, c.end_ns) - s.start_ns) AS ns
FROM stood AS s
ASOF JOIN calls AS c ON c.process = s.process AND c.start_ns <= s.start_ns
WHERE s.what = 'interpreter lock' AND c.end_ns > s.start_ns
GROUP BY s.process
