-- pool_calls: calls inside pooled waits.  In a pooled wait the maker of the batch is not known: tf.data's
-- threads are C++, and Grain's threads do not report the batch.  Calls of every thread of the process, the
-- waiting thread included, and of the loader's workers count as calls of helpers of the wait, without the
-- makers of other batches (pool_bystanders).  The wait may have been for another thread's work, so the time of
-- the helpers' calls is an upper bound of the wait for file calls.
WITH pools AS (
    SELECT
        stretch_id,
        main,
        is_blocking,
        from_ns,
        to_ns,
        unnest(range(from_ns // getvariable('slot_ns'), to_ns // getvariable('slot_ns') + 1)) AS slot
    FROM stretches
    WHERE kind = 'pool'
),
calls AS (
    SELECT
        m.main,
        m.process AS maker,
        e.* EXCLUDE (process, thread, duration_ns),
        e.start_ns + coalesce(e.duration_ns, greatest(0, l.end_ns - e.start_ns)) AS end_ns
    FROM file_waits AS e
    JOIN pool_members AS m ON m.process = e.process
    JOIN lives AS l ON l.process = e.process
),
call_slots AS (
    SELECT *, start_ns // getvariable('slot_ns') AS slot
    FROM calls
    WHERE start_ns // getvariable('slot_ns') = end_ns // getvariable('slot_ns')
    UNION ALL
    SELECT *, unnest(range(start_ns // getvariable('slot_ns'), end_ns // getvariable('slot_ns') + 1))
    FROM calls
    WHERE start_ns // getvariable('slot_ns') < end_ns // getvariable('slot_ns')
)
SELECT p.* EXCLUDE (main, slot), false AS is_own, c.* EXCLUDE (main, maker, slot)
FROM call_slots AS c
JOIN pools AS p
    ON p.main = c.main AND p.slot = c.slot
        AND c.start_ns < p.to_ns AND (c.end_ns > p.from_ns OR c.start_ns >= p.from_ns)
LEFT JOIN pool_bystanders AS b ON b.stretch_id = p.stretch_id AND b.process = c.maker
-- If a call and a wait share several slots, only the first shared slot counts.
WHERE b.process IS NULL AND c.slot = greatest(c.start_ns, p.from_ns) // getvariable('slot_ns')
