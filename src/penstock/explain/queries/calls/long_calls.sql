-- long_calls: calls in several slots, and unfinished calls, with each stretch that counts the call.
-- Long calls are few, so a lookup in each slot of a call is cheap.
WITH calls AS (
    SELECT
        e.* EXCLUDE (duration_ns),
        e.start_ns + coalesce(e.duration_ns, greatest(0, l.end_ns - e.start_ns)) AS end_ns
    FROM file_waits AS e
    JOIN lives AS l ON l.process = e.process
    WHERE e.duration_ns IS NULL
        OR e.start_ns // getvariable('slot_ns')
            < (e.start_ns + e.duration_ns) // getvariable('slot_ns')
),
call_slots AS (
    SELECT
        *,
        unnest(range(start_ns // getvariable('slot_ns'), end_ns // getvariable('slot_ns') + 1)) AS slot
    FROM calls
)
SELECT
    w.* EXCLUDE (process, thread, slot),
    c.* EXCLUDE (process, thread, slot)
FROM call_slots AS c
JOIN watched AS w
    ON w.process = c.process AND w.thread = c.thread AND w.slot = c.slot
        AND c.start_ns < w.to_ns AND (c.end_ns > w.from_ns OR c.start_ns >= w.from_ns)
-- A call and a stretch with several slots in common meet only in the first common slot.
WHERE c.slot = greatest(c.start_ns, w.from_ns) // getvariable('slot_ns')
