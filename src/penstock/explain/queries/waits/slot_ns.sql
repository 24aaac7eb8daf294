-- slot_ns: time is cut into slots of this many ns, in which calls look for stretches: as wide as a usual
-- stretch, so that a call meets few; but not so narrow that there are a million slots more than stretches.
SELECT CAST(coalesce(greatest(65536, median(to_ns - from_ns), sum(to_ns - from_ns) / 1e6), 65536) AS BIGINT)
FROM stretches
