-- unsure: for each main process, time of the training stretch that may be data wait, beyond the recorded data waits.
--   unfed_steps, unfed_ns  steps without a data wait reported by a loader, and candidate time in these steps.
--              Candidates are the input stretches of the steps, or the whole steps if the framework does not report
--              computations.  Known time is subtracted: inferred waits, checkpoints, standstills outside data waits,
--              gradient clearing, release of memory and file calls of the thread
--   maybe_ns   standstills that are neither is_data nor is_sure (see stood), in unfed steps or in an input stretch of
--              any step
--   between_ns  input stretches of the other steps in which the thread used the CPU, less known waits, file calls and
--              release of memory by the thread: the thread may decode or copy a batch.  CPU time of 1 ms per step, or of 5 % of a step
--              shorter than 20 ms, is allowed: a loop moves the batch to a device and logs
--   hidden_ns  time off the CPU without a recorded call, at most the time in input stretches: the threads of a
--              computation (OpenMP) wait for each other by system calls that pass no import slot; NULL: the
--              blocked time of the process's steps was not measured (step_balances)
WITH unfed AS (
    SELECT * FROM step_stretches WHERE waits = 0
),
told AS (
    SELECT DISTINCT process FROM input_time
),
-- Candidates in an unfed step, before deductions: the whole step, or the input stretches of the step.
wide AS (
    SELECT u.process, u.from_ns, u.to_ns
    FROM unfed AS u
    WHERE u.process NOT IN (SELECT process FROM told)
    UNION ALL
    SELECT i.process, greatest(i.start_ns, u.from_ns), least(i.end_ns, u.to_ns)
    FROM input_time AS i
    ASOF JOIN unfed AS u ON u.process = i.process AND u.from_ns <= i.start_ns
    WHERE u.to_ns > i.start_ns
),
-- Time in which the thread clears gradients.  If a standstill lies inside, only the standstill is known time.
emptied AS (
    SELECT s.process, s.start_ns, s.end_ns, coalesce(s.b, 0) AS cpu_ns
    FROM timed_spans AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    ASOF LEFT JOIN stood AS n ON n.process = s.process AND n.start_ns <= s.end_ns
    WHERE s.name = 'clear gradients' AND s.is_outermost AND (n.start_ns IS NULL OR n.start_ns < s.start_ns)
),
-- Time in which the thread gives memory back to the kernel outside a wait: a loop that receives a batch drops the batch
-- before, which worker processes sent in shared memory.
dropped AS (
    SELECT e.process, e.start_ns, e.start_ns + e.duration_ns AS end_ns, e.duration_ns AS cpu_ns
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number AND o.op = 'munmap'
    JOIN mains AS m ON m.process = e.process AND m.thread = e.thread
    ASOF LEFT JOIN waits AS w ON w.process = e.process AND w.start_ns <= e.start_ns
    WHERE e.file IS NULL AND e.duration_ns IS NOT NULL AND (w.end_ns IS NULL OR w.end_ns <= e.start_ns)
),
cleared AS (
    SELECT * FROM emptied
    UNION ALL
    SELECT d.process, d.start_ns, d.end_ns, d.cpu_ns
    FROM dropped AS d
    ASOF LEFT JOIN emptied AS c ON c.process = d.process AND c.start_ns <= d.start_ns
    WHERE c.end_ns IS NULL OR c.end_ns <= d.start_ns
),
-- Known time.  The rows do not overlap, except for calls inside a checkpoint.
known AS (
    SELECT process, start_ns, end_ns FROM waits WHERE in_wall
    UNION ALL
    SELECT process, start_ns, end_ns FROM stood WHERE NOT is_data
    UNION ALL
    SELECT process, start_ns, end_ns FROM saves WHERE blocks
    UNION ALL
    SELECT process, start_ns, end_ns FROM cleared
    UNION ALL
    SELECT s.process, i.from_ns, i.to_ns
    FROM inside AS i
    JOIN stretches AS s ON s.stretch_id = i.stretch_id
    WHERE s.kind = 'step' AND i.is_own
),
known_in_input AS (
    SELECT i.process, sum(least(k.end_ns, i.end_ns) - k.start_ns) AS ns
    FROM known AS k
    ASOF JOIN input_time AS i ON i.process = k.process AND i.start_ns <= k.start_ns
    WHERE i.end_ns > k.start_ns
    GROUP BY i.process
),
fed_input AS (
    SELECT i.process, i.start_ns, i.end_ns, i.cpu_ns, least(1000000, 0.05 * (f.to_ns - f.from_ns)) AS free_ns
    FROM input_time AS i
    ASOF JOIN step_stretches AS f ON f.process = i.process AND f.from_ns <= i.start_ns
    WHERE i.is_tight AND f.waits > 0 AND f.to_ns > i.start_ns
),
known_in_fed AS (
    SELECT i.process, i.start_ns, sum(k.ns) AS ns, sum(k.cpu_ns) AS cpu_ns
    FROM (
        SELECT process, start_ns, end_ns - start_ns AS ns, 0 AS cpu_ns FROM known
        UNION ALL
        SELECT f.process, f.start_ns, 0, coalesce(f.cpu_ns, 0)
        FROM fetches AS f
        JOIN mains AS m ON m.process = f.process AND m.thread = f.thread
        UNION ALL
        SELECT process, start_ns, 0, cpu_ns FROM cleared
    ) AS k
    ASOF JOIN fed_input AS i ON i.process = k.process AND i.start_ns <= k.start_ns
    WHERE i.end_ns > k.start_ns
    GROUP BY i.process, i.start_ns
),
own_work AS (
    SELECT
        i.process,
        sum(CASE
            WHEN i.cpu_ns - coalesce(k.cpu_ns, 0) > i.free_ns
            THEN greatest(0, i.end_ns - i.start_ns - coalesce(k.ns, 0) - i.free_ns)
            ELSE 0
        END) AS ns
    FROM fed_input AS i
    LEFT JOIN known_in_fed AS k ON k.process = i.process AND k.start_ns = i.start_ns
    GROUP BY i.process
),
off_in_input AS (
    SELECT
        i.process,
        greatest(0, least(
            sum(i.end_ns - i.start_ns) - coalesce(max(k.ns), 0),
            sum(greatest(0, i.end_ns - i.start_ns - coalesce(i.cpu_ns, 0)))
        )) AS ns
    FROM input_time AS i
    LEFT JOIN known_in_input AS k ON k.process = i.process
    GROUP BY i.process
),
taken AS (
    SELECT k.process, sum(least(k.end_ns, w.to_ns) - k.start_ns) AS ns
    FROM known AS k
    ASOF JOIN wide AS w ON w.process = k.process AND w.from_ns <= k.start_ns
    WHERE w.to_ns > k.start_ns
    GROUP BY k.process
),
widths AS (
    SELECT process, sum(greatest(0, to_ns - from_ns)) AS ns FROM wide GROUP BY process
),
maybe AS (
    SELECT s.process, sum(s.end_ns - s.start_ns) AS ns
    FROM stood AS s
    ASOF JOIN step_stretches AS u ON u.process = s.process AND u.from_ns <= s.start_ns
    WHERE NOT s.is_data AND NOT s.is_sure AND s.start_ns < u.to_ns AND (u.waits = 0 OR s.is_input)
    GROUP BY s.process
)
SELECT
    m.process,
    (SELECT count(*) FROM unfed AS u WHERE u.process = m.process) AS unfed_steps,
    greatest(0, coalesce(w.ns, 0) - coalesce(t.ns, 0)) AS unfed_ns,
    coalesce(y.ns, 0) AS maybe_ns,
    coalesce(x.ns, 0) AS between_ns,
    CASE
        WHEN b.asleep_ns IS NOT NULL THEN greatest(0, least(b.hidden_ns, coalesce(o.ns, b.asleep_ns)))
    END AS hidden_ns
FROM mains AS m
LEFT JOIN widths AS w ON w.process = m.process
LEFT JOIN taken AS t ON t.process = m.process
LEFT JOIN maybe AS y ON y.process = m.process
LEFT JOIN own_work AS x ON x.process = m.process
LEFT JOIN hidden_time AS b ON b.process = m.process
LEFT JOIN off_in_input AS o ON o.process = m.process
