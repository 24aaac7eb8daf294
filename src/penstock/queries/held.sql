-- held: the part of each single file call that lies inside a stretch in which it counts.
--   ns  of this part the time in which storage may have held the thread up: see file_waits and bounds
SELECT
    i.*,
    (i.to_ns - i.from_ns) / greatest(1, i.duration_ns)
        * greatest(0, least(i.held_ns, coalesce(b.high_ns, i.held_ns)) - coalesce(b.low_ns, 0)) AS ns
FROM inside AS i
LEFT JOIN bounds AS b ON b.stretch_id = i.stretch_id AND i.is_own
