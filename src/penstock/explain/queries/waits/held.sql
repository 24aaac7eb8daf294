-- held: the part of each single file call that lies inside a stretch in which it counts.
--   held_ns  how long storage may have held the thread up in the whole call: see file_waits and bounds
--   ns       the same in the part inside
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
