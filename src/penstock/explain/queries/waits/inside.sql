-- inside: for each single file call, the part from from_ns to to_ns inside a stretch in which the call counts.
--   begins  true: the call began inside the stretch
--   is_own  see watched and pool_calls
--   duration_ns, held_ns, delay_ns  of the whole call, as far as recorded; see file_waits
WITH short_calls AS (
    SELECT
        * EXCLUDE (duration_ns),
        start_ns + duration_ns AS end_ns,
        start_ns // getvariable('slot_ns') AS slot
    FROM file_waits
    WHERE start_ns // getvariable('slot_ns') = (start_ns + duration_ns) // getvariable('slot_ns')
),
met AS (
    SELECT w.stretch_id, w.is_own, w.is_blocking, w.from_ns, w.to_ns, c.op_number, c.file, c.path_class,
        c.moved_bytes, c.start_ns, c.end_ns, c.held_ns, c.delay_ns
    FROM short_calls AS c
    JOIN watched AS w
        ON w.process = c.process AND w.thread = c.thread AND w.slot = c.slot
            AND c.start_ns < w.to_ns AND (c.end_ns > w.from_ns OR c.start_ns >= w.from_ns)
    UNION ALL
    SELECT stretch_id, is_own, is_blocking, from_ns, to_ns, op_number, file, path_class, moved_bytes,
        start_ns, end_ns, held_ns, delay_ns
    FROM long_calls
    UNION ALL
    SELECT stretch_id, is_own, is_blocking, from_ns, to_ns, op_number, file, path_class, moved_bytes,
        start_ns, end_ns, held_ns, delay_ns
    FROM pool_calls
)
SELECT
    stretch_id,
    is_own,
    is_blocking,
    op_number,
    file,
    path_class,
    moved_bytes,
    end_ns - start_ns AS duration_ns,
    coalesce(held_ns, end_ns - start_ns) AS held_ns,
    delay_ns,
    greatest(start_ns, from_ns) AS from_ns,
    least(end_ns, to_ns) AS to_ns,
    start_ns >= from_ns AS begins
FROM met
