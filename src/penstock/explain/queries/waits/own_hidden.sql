-- own_hidden: for each piece of a batch that the step thread makes (own_batches), the time in no recorded call in which
-- the thread was off the CPU, if such time is known of the process (hidden_time): the thread may have waited for
-- storage by calls that are not recorded (io_uring, POSIX AIO).
--   ns  at most the time beyond the CPU time of the input stretch.  If the process has less hidden time than all
--       pieces together, each piece has the same share
WITH stands AS (
    SELECT stretch_id, sum(ns) AS ns FROM stretch_stands GROUP BY stretch_id
),
pieces AS (
    SELECT
        s.stretch_id,
        s.process,
        s.from_ns,
        greatest(0, f.blocked_ns - coalesce(t.ns, 0)) AS ns
    FROM stretches AS s
    JOIN waits AS w ON w.wait_id = s.wait_id AND w.made_by = w.thread
    JOIN fits AS f ON f.stretch_id = s.stretch_id
    LEFT JOIN stands AS t ON t.stretch_id = s.stretch_id
    WHERE s.kind = 'made' AND s.process IN (SELECT process FROM hidden_time WHERE hidden_ns > 0)
),
placed AS (
    SELECT
        p.*,
        greatest(0, sum(p.ns) OVER input - coalesce(i.cpu_ns, 0)) / nullif(sum(p.ns) OVER input, 0) AS off
    FROM pieces AS p
    ASOF JOIN input_time AS i ON i.process = p.process AND i.start_ns <= p.from_ns
    WINDOW input AS (PARTITION BY i.process, i.start_ns)
),
summed AS (
    SELECT *, sum(ns * off) OVER (PARTITION BY process) AS all_ns FROM placed WHERE ns * off > 0
)
SELECT s.stretch_id, s.ns * s.off * least(1, h.hidden_ns / s.all_ns) AS ns
FROM summed AS s
JOIN hidden_time AS h ON h.process = s.process
