-- slot_ns: width in ns of the slots of time in which calls look for stretches: the width of a usual stretch, so
-- that a call meets few stretches; wider if there were a million slots more than stretches.
SELECT CAST(coalesce(greatest(65536, median(to_ns - from_ns), sum(to_ns - from_ns) / 1e6), 65536) AS BIGINT)
FROM stretches
