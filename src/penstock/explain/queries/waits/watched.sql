-- watched: the stretches in which a thread's file calls count, by the slots covered by the stretch.
--   is_own  true: the stretch's own thread.  false: a helper: another thread of a process that fetches a batch, if
--           the other thread does not itself fetch, wait for data or take steps; or a thread of a program started
--           by the process (see started)
-- In a pooled wait the calls of all threads count: see pool_calls.
WITH helpers AS (
    SELECT process, thread
    FROM events_raw
    WHERE process IN (SELECT process FROM fetches)
    EXCEPT
    SELECT process, thread FROM spans WHERE kind = 'step' OR name IN ('data wait', 'fetch')
),
programs AS (
    SELECT DISTINCT c.starter, c.process, e.thread, l.start_ns, l.end_ns
    FROM started AS c
    JOIN lives AS l ON l.process = c.process
    JOIN events_raw AS e ON e.process = c.process
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
    UNION ALL
    SELECT s.stretch_id, c.process, c.thread, false, s.from_ns, s.to_ns, s.is_blocking
    FROM stretches AS s
    JOIN programs AS c ON c.starter = s.process AND c.start_ns < s.to_ns AND c.end_ns > s.from_ns
    WHERE s.kind IN ('fetch', 'made')
)
SELECT
    *,
    unnest(range(from_ns // getvariable('slot_ns'), to_ns // getvariable('slot_ns') + 1)) AS slot
FROM watching
