-- stood: the standstills of the thread that takes the steps, within the training stretch and outside the data
-- waits of known loaders and blocking checkpoints.
--   what     as in standstills, or 'save': a thread that saves checkpoints ended the standstill
--   is_data  true: the standstill counts as data wait.  The thread waited for another thread, another process or
--            the network while the thread computed nothing (or the process reports no computations), and there is
--            evidence of data brought by the wait: see witnessed.  A wait for the interpreter lock counts if a
--            data wait ended at most 100 us earlier: the thread takes the lock again
--   is_sure  true: the standstill is certainly no data wait, but a wait for an accelerator, other ranks, the
--            computation's own threads or a save; or, inside a computation, a wait for the interpreter lock, a
--            sleep or a wait for the end of another program; or a wait between a backward pass and the
--            optimizer's step, except for a network that sends data there (see pulled).  Neither is_data nor
--            is_sure: the standstill may be a data wait
--   is_input  true: the standstill is inside an input stretch, or the process does not report computations
--   made_by  the thread that did the awaited work; see waits
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
            AS is_input,
        o.process IN (SELECT process FROM input_time) AS is_told
    FROM outside AS o
    JOIN mains AS m ON m.process = o.process
    LEFT JOIN savers AS b ON b.process = o.process AND b.thread = o.waker
    ASOF LEFT JOIN input_time AS i ON i.process = o.process AND i.start_ns <= o.start_ns
    ASOF LEFT JOIN after_backward AS e
        ON e.process = o.process AND e.thread = o.thread AND e.start_ns <= o.start_ns
),
-- Bytes that the network sent to the thread between backward passes and optimizer's steps, less the bytes sent.
-- With 1 KiB or more per wait the thread exchanges no gradients: the bytes may be the next batch, or weights.
pulled AS (
    SELECT g.process, g.thread, sum(g.stream_bytes) AS bytes
    FROM gains AS g
    ASOF JOIN after_backward AS b ON b.process = g.process AND b.thread = g.thread AND b.start_ns <= g.start_ns
    WHERE g.stream_bytes > 0 AND g.start_ns < b.end_ns
    GROUP BY g.process, g.thread
),
pulling AS (
    SELECT p.process, p.thread
    FROM placed AS p
    JOIN pulled AS b ON b.process = p.process AND b.thread = p.thread
    WHERE p.is_after_backward AND p.what = 'network' AND p.waker IS NULL
    GROUP BY p.process, p.thread, b.bytes
    HAVING b.bytes >= 1024 * count(*)
),
consumers AS (
    SELECT DISTINCT process, thread FROM spans WHERE kind = 'span' AND name IN ('data wait', 'worker')
),
-- For each waker, at each of the waker's own waits: the sum of the waker's earlier waits.  A waker that itself
-- waited for most of a standstill only forwards the work of other threads or processes.
handing AS (
    SELECT
        s.process,
        s.thread,
        s.start_ns,
        s.end_ns,
        sum(s.end_ns - s.start_ns) OVER (PARTITION BY s.process, s.thread ORDER BY s.start_ns)
            - (s.end_ns - s.start_ns) AS before_ns
    FROM standstills AS s
    JOIN (SELECT DISTINCT process, waker FROM placed) AS w ON w.process = s.process AND w.waker = s.thread
    WHERE s.what IN ('pipe', 'other thread')
),
handed AS (
    SELECT
        p.*,
        c.thread IS NOT NULL AS is_consumer,
        coalesce(t.before_ns + least(p.end_ns, t.end_ns) - t.start_ns, 0)
            - coalesce(f.before_ns + least(p.start_ns, f.end_ns) - f.start_ns, 0)
            > 0.5 * (p.end_ns - p.start_ns) AS is_handed_on
    FROM placed AS p
    LEFT JOIN consumers AS c ON c.process = p.process AND c.thread = p.waker
    ASOF LEFT JOIN handing AS f
        ON f.process = p.process AND f.thread = p.waker AND f.start_ns <= p.start_ns
    ASOF LEFT JOIN handing AS t
        ON t.process = p.process AND t.thread = p.waker AND t.start_ns <= p.end_ns
),
-- The number of waits and of steps with waits, per kind of wait and waker.
recurring AS (
    SELECT h.process, h.what, h.waker, count(*) AS waits, count(DISTINCT coalesce(s.end_ns, 0)) AS steps
    FROM handed AS h
    ASOF LEFT JOIN steps AS s
        ON s.process = h.process AND s.thread = h.thread AND s.end_ns <= h.start_ns
    WHERE h.is_input AND (h.what IN ('other thread', 'network', 'pipe') OR (h.what = 'interpreter lock' AND h.is_told))
    GROUP BY h.process, h.what, h.waker
),
feeding AS (
    SELECT m.process, coalesce(w.waits, 0) >= 0.5 * m.steps AS is_fed
    FROM mains AS m
    LEFT JOIN (
        SELECT process, count(*) AS waits FROM loader_waits WHERE in_wall AND index IS NOT NULL GROUP BY process
    ) AS w ON w.process = m.process
),
-- Threads that call a model, compute gradients or take steps.  A wait for a trainer may be for the trainer's
-- computation, even if the trainer reads data.
trainers AS (
    SELECT DISTINCT process, thread
    FROM spans
    WHERE (kind = 'step' AND duration_ns IS NOT NULL AND b IS DISTINCT FROM 2) OR (kind = 'span' AND name = 'trains')
),
others AS (
    SELECT t.main, sum(t.bytes) AS bytes
    FROM taken_in AS t
    JOIN mains AS m ON m.process = t.main
    LEFT JOIN trainers AS n ON n.process = t.process AND n.thread = t.thread
    WHERE (t.process <> m.process OR t.thread <> m.thread) AND n.thread IS NULL
    GROUP BY t.main
),
-- Bytes that the main process wrote to pipes and to sockets within the host: other threads take in the bytes, but
-- not as data.  answered_bytes: bytes that the main process read from pipes and from sockets within the host.
given AS (
    SELECT
        e.process,
        sum(CASE WHEN o.op_group = 'write' THEN e.moved_bytes ELSE 0 END) AS bytes,
        sum(CASE WHEN o.op_group = 'read' THEN e.moved_bytes ELSE 0 END) AS answered_bytes
    FROM events_raw AS e
    JOIN mains AS m ON m.process = e.process
    JOIN files AS f ON f.file = e.file
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE (f.kind = 'pipe' OR f.path = 'socket:unix') AND o.is_access AND o.op_group IN ('read', 'write')
        AND e.errno = 0 AND e.start_ns >= m.first_ns AND e.start_ns < m.last_ns
    GROUP BY e.process
),
-- A wait brought data if the waker consumes a known loader, if the waker took in at least 1 KiB per wait ended by the
-- waker, or, with an unknown waker, if the waiting thread itself received at least 1 KiB per wait.
-- In a process without a known loader, two more rules hold for a wait that recurs in a quarter of the steps.  If the
-- waker is unknown or only forwards the work of others, the bytes of all other threads count, less the main
-- process's own writes to pipes (see given).  A wait for a pipe counts without bytes, because the message may only
-- name a batch; but if the main process wrote more bytes to pipes than arrived through pipes, a wait for a pipe needs
-- bytes like any other wait.
witnessed AS (
    SELECT
        h.*,
        h.is_after_backward AND NOT (h.what = 'network' AND h.waker IS NULL AND u.thread IS NOT NULL)
            AS is_exchanged,
        -- While the thread computes nothing, the holder of the interpreter lock may be making the thread's batch.
        h.what = 'interpreter lock' AND h.is_input AND (h.is_told OR NOT f.is_fed) AS is_lock_open,
        CASE
            WHEN r.waits IS NULL OR n.thread IS NOT NULL THEN false
            WHEN h.is_consumer THEN true
            WHEN coalesce(g.bytes, 0) >= 1024 * r.waits THEN true
            WHEN h.waker IS NULL AND coalesce(o.stream_bytes, 0) >= 1024 * r.waits THEN true
            WHEN f.is_fed OR r.steps < 0.25 * m.steps OR h.what = 'network' THEN false
            WHEN h.what = 'pipe'
            THEN coalesce(v.bytes, 0) < 1024 * r.waits OR v.bytes < v.answered_bytes
            ELSE (h.waker IS NULL OR h.is_handed_on)
                AND coalesce(a.bytes, 0) - coalesce(v.bytes, 0) >= 1024 * r.waits
        END AS is_witnessed
    FROM handed AS h
    JOIN mains AS m ON m.process = h.process
    JOIN feeding AS f ON f.process = h.process
    LEFT JOIN trainers AS n ON n.process = h.process AND n.thread = h.waker
    LEFT JOIN recurring AS r
        ON r.process = h.process AND r.what = h.what AND coalesce(r.waker, -1) = coalesce(h.waker, -1)
            AND h.is_input
    LEFT JOIN taken_in AS g ON g.main = h.process AND g.process = h.process AND g.thread = h.waker
    LEFT JOIN taken_in AS o ON o.main = h.process AND o.process = h.process AND o.thread = h.thread
    LEFT JOIN others AS a ON a.main = h.process
    LEFT JOIN given AS v ON v.process = h.process
    LEFT JOIN pulling AS u ON u.process = h.process AND u.thread = h.thread
)
SELECT
    process,
    thread,
    what,
    start_ns,
    end_ns,
    is_input,
    is_witnessed AND (
        what <> 'interpreter lock'
        OR coalesce(
            lag(is_witnessed AND what <> 'interpreter lock') OVER before AND start_ns - lag(end_ns) OVER before <= 100000,
            false
        )
    ) AS is_data,
    what IN ('accelerator', 'exchange', 'compute', 'save') OR (what = 'interpreter lock' AND NOT is_lock_open)
        OR is_exchanged OR (what IN ('sleep', 'program') AND NOT is_input) AS is_sure,
    CASE
        WHEN what = 'network' THEN thread
        -- The work behind a consumer or forwarding thread is done by workers, other threads or processes.
        WHEN NOT is_consumer AND NOT is_handed_on THEN waker
    END AS made_by
FROM witnessed
WINDOW before AS (PARTITION BY process, thread ORDER BY start_ns)
