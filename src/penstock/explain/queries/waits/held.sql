-- held: each file call in each stretch where the call counts: the part of the call inside the stretch.
--   held_ns  how long storage may have delayed the thread in the whole call: see file_waits and bounds
--   ns       the share of held_ns inside the stretch, in proportion to the call's time inside the stretch
SELECT
    *,
    (to_ns - from_ns) / greatest(1, duration_ns) * held_ns AS ns
FROM (
    SELECT
        i.* EXCLUDE (held_ns),
        greatest(0, least(i.held_ns, coalesce(b.high_ns, i.held_ns)) - coalesce(b.low_ns, 0)) AS held_ns
    FROM inside AS i
    LEFT JOIN bounds AS b ON b.stretch_id = i.stretch_id AND i.is_own
)
