-- watched: the stretches in which a thread's file calls count, by the slots they lie in.
--   is_own  true: the stretch's own thread.  false: a helper, another thread of a process that fetches a
--           batch; it works for the fetch if it is no thread that fetches, waits for data or takes steps
--           itself.
-- In a pooled wait those of all threads count: see pool_calls.
WITH helpers AS (
    SELECT process, thread
    FROM events_raw
    WHERE process IN (SELECT process FROM fetches)
    EXCEPT
    SELECT process, thread FROM spans WHERE kind = 'step' OR name IN ('data wait', 'fetch')
),
watching AS (
    SELECT stretch_id, process, thread, true AS is_own, from_ns, to_ns, is_blocking
    FROM stretches
    WHERE kind <> 'pool' AND (kind NOT IN ('worker start', 'pass end', 'hand-over') OR process = main)
    UNION ALL
    SELECT s.stretch_id, s.process, h.thread, false, s.from_ns, s.to_ns, s.is_blocking
    FROM stretches AS s
    JOIN helpers AS h ON h.process = s.process
    WHERE s.kind = 'fetch'
)
SELECT
    *,
    unnest(range(from_ns // getvariable('slot_ns'), to_ns // getvariable('slot_ns') + 1)) AS slot
FROM watching
