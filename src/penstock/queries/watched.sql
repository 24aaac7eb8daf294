-- watched: the stretches in which the thread's own file calls count, by the slots they lie in.
SELECT
    stretch_id,
    process,
    thread,
    from_ns,
    to_ns,
    is_blocking,
    unnest(range(from_ns // getvariable('slot_ns'), to_ns // getvariable('slot_ns') + 1)) AS slot
FROM stretches
WHERE kind NOT IN ('worker start', 'pass end', 'hand-over') OR process = main
