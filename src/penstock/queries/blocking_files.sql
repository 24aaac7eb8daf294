-- blocking_files: by file and op, the part of its calls' time in which the step loop was blocked by
-- them: in a wait of the training stretch by the worker that owed the batch, in a checkpoint that
-- blocks, or because the thread that takes the steps made the call itself.
WITH blocking AS (
    SELECT process, thread, slot, from_ns, to_ns FROM watched WHERE is_blocking
),
calls AS (
    SELECT process, thread, op_number, file, start_ns, start_ns + duration_ns AS end_ns,
        start_ns // getvariable('slot_ns') AS slot
    FROM file_calls
    WHERE start_ns // getvariable('slot_ns') = (start_ns + duration_ns) // getvariable('slot_ns')
),
inside AS (
    SELECT
        c.file,
        c.op_number,
        least(c.end_ns, w.to_ns) - greatest(c.start_ns, w.from_ns) AS ns
    FROM calls AS c
    JOIN blocking AS w
        ON w.process = c.process AND w.thread = c.thread AND w.slot = c.slot
            AND c.start_ns < w.to_ns AND c.end_ns > w.from_ns
    UNION ALL
    SELECT l.file, l.op_number, least(l.end_ns, s.to_ns) - greatest(l.start_ns, s.from_ns)
    FROM long_calls AS l
    JOIN stretches AS s ON s.stretch_id = l.stretch_id
    WHERE s.is_blocking
)
SELECT file, op_number, CAST(sum(ns) AS BIGINT) AS ns FROM inside GROUP BY file, op_number
