-- slot_ns: width in ns of the time slots in which calls look for stretches: the median width of a stretch, so a call
-- meets few stretches; wider if the slots would outnumber the stretches by a million.
SELECT CAST(coalesce(greatest(65536, median(to_ns - from_ns), sum(to_ns - from_ns) / 1e6), 65536) AS BIGINT)
FROM stretches
