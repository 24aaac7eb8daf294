-- stood: the standstills of the thread that takes the steps, within the training stretch and outside the data
-- waits of known loaders and blocking checkpoints.
--   what     as in standstills, or 'save': another thread that saves checkpoints ended it
--   is_data  it counts as data wait: it waited for another thread, another process or the network while it
--            computed nothing, or while nobody told when it computes
--   is_sure  what it waited for is no data: an accelerator, other ranks, a computation's own threads, the
--            interpreter lock; or a sleep, or another program's end, inside a computation; or anything between
--            a backward pass and its optimizer's step.  Neither: it may be a data wait
--   is_input  it lies in an input stretch, or nobody told when its process computes
--   made_by  the thread whose work it waited for; see waits
WITH known AS (
    SELECT process, start_ns, end_ns FROM loader_waits
    UNION ALL
    SELECT process, start_ns, end_ns FROM saves WHERE blocks
),
outside AS (
    SELECT s.*
    FROM standstills AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    ASOF LEFT JOIN known AS k ON k.process = s.process AND k.start_ns <= s.start_ns
    WHERE s.start_ns >= m.first_ns AND s.start_ns < m.last_ns
        AND (k.end_ns IS NULL OR k.end_ns <= s.start_ns)
),
savers AS (
    SELECT DISTINCT process, thread
    FROM spans
    WHERE kind = 'span' AND name IN ('checkpoint', 'snapshot', 'local commit')
),
after_backward AS (
    SELECT process, thread, start_ns, end_ns
    FROM input_stretches
    WHERE began = 'backward ended' AND ended = 'optimizer'
),
placed AS (
    SELECT
        o.process,
        o.thread,
        CASE WHEN b.thread IS NULL THEN o.what ELSE 'save' END AS what,
        o.waker,
        o.start_ns,
        least(o.end_ns, m.last_ns) AS end_ns,
        coalesce(e.end_ns > o.start_ns, false) AS is_after_backward,
        coalesce(e.end_ns <= o.start_ns, true)
            AND (o.process NOT IN (SELECT process FROM input_time) OR coalesce(i.end_ns > o.start_ns, false))
            AS is_input
    FROM outside AS o
    JOIN mains AS m ON m.process = o.process
    LEFT JOIN savers AS b ON b.process = o.process AND b.thread = o.waker
    ASOF LEFT JOIN input_time AS i ON i.process = o.process AND i.start_ns <= o.start_ns
    ASOF LEFT JOIN after_backward AS e
        ON e.process = o.process AND e.thread = o.thread AND e.start_ns <= o.start_ns
),
consumers AS (
    SELECT DISTINCT process, thread FROM spans WHERE kind = 'span' AND name IN ('data wait', 'worker')
)
SELECT
    p.process,
    p.thread,
    p.what,
    p.start_ns,
    p.end_ns,
    p.is_input,
    p.what IN ('other thread', 'network', 'pipe') AND p.is_input AS is_data,
    p.what IN ('accelerator', 'exchange', 'compute', 'interpreter lock', 'save')
        OR p.is_after_backward OR (p.what IN ('sleep', 'program') AND NOT p.is_input) AS is_sure,
    CASE
        WHEN p.what = 'network' THEN p.thread
        -- What such a thread hands on, its loader's workers made.
        WHEN c.thread IS NULL THEN p.waker
    END AS made_by
FROM placed AS p
LEFT JOIN consumers AS c ON c.process = p.process AND c.thread = p.waker
