-- own_batches: data waits of a training loop that makes the batches in the thread that takes the steps, without a known
-- loader.  A wait begins in an input stretch with the first bytes that the thread takes in from data files, pipes or
-- sockets.  The wait ends with the input stretch, or where the loop clears the gradients.  The thread's computing in
-- between makes the batch.  Standstills are excluded: see stood.  A process has no row if the process takes in less
-- than 1 KiB per wait on average, or has waits in less than a quarter of the steps.
WITH own AS (
    SELECT i.process, m.thread, i.start_ns, i.end_ns
    FROM input_time AS i
    JOIN mains AS m ON m.process = i.process
    WHERE i.is_tight
        AND i.process NOT IN (SELECT process FROM loader_waits WHERE in_wall AND index IS NOT NULL)
),
begun AS (
    SELECT o.process, o.thread, o.end_ns, min(g.start_ns) AS start_ns, sum(g.bytes) AS bytes
    FROM gains AS g
    ASOF JOIN own AS o ON o.process = g.process AND o.thread = g.thread AND o.start_ns <= g.start_ns
    WHERE g.start_ns < o.end_ns AND NOT g.is_received
    GROUP BY o.process, o.thread, o.start_ns, o.end_ns
),
cleared AS (
    SELECT b.process, b.start_ns, min(s.start_ns) AS cleared_ns
    FROM timed_spans AS s
    ASOF JOIN begun AS b ON b.process = s.process AND b.thread = s.thread AND b.start_ns <= s.start_ns
    WHERE s.name = 'clear gradients' AND s.start_ns < b.end_ns
    GROUP BY b.process, b.start_ns
),
made AS (
    SELECT b.process, b.thread, b.start_ns, least(b.end_ns, coalesce(c.cleared_ns, b.end_ns)) AS end_ns, b.bytes
    FROM begun AS b
    LEFT JOIN cleared AS c ON c.process = b.process AND c.start_ns = b.start_ns
),
sized AS (
    SELECT
        *,
        sum(bytes) OVER (PARTITION BY process) AS all_bytes,
        count(*) OVER (PARTITION BY process) AS batches
    FROM made
),
known AS (
    SELECT s.process, s.thread, s.start_ns, s.end_ns
    FROM sized AS s
    JOIN mains AS m ON m.process = s.process
    WHERE s.all_bytes >= 1024 * s.batches AND s.batches >= 0.25 * m.steps
),
stands AS (
    SELECT k.process, k.thread, k.start_ns AS batch_ns, k.end_ns AS batch_end_ns, s.start_ns, s.end_ns
    FROM stood AS s
    ASOF JOIN known AS k ON k.process = s.process AND k.start_ns <= s.start_ns
    WHERE s.start_ns < k.end_ns
),
-- The time between the standstills of a wait, beginning with the time before the first standstill.
cut AS (
    SELECT process, thread, start_ns AS batch_ns, end_ns AS batch_end_ns, start_ns AS stand_ns, start_ns AS from_ns
    FROM known
    UNION ALL
    SELECT process, thread, batch_ns, batch_end_ns, start_ns, end_ns FROM stands
),
pieces AS (
    SELECT
        process,
        thread,
        from_ns AS start_ns,
        least(batch_end_ns, coalesce(lead(stand_ns) OVER (
            PARTITION BY process, batch_ns ORDER BY stand_ns, from_ns
        ), batch_end_ns)) AS end_ns
    FROM cut
)
SELECT process, thread, start_ns, end_ns FROM pieces WHERE end_ns > start_ns
