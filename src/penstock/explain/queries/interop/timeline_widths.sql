-- Calls of a timeline by width: how many take at least 2^log2_ns ns and less than twice that.
SELECT CAST(floor(log2(greatest(duration_ns, 1))) AS INTEGER) AS log2_ns, count(*) AS calls
FROM timeline_shown
GROUP BY log2_ns
ORDER BY log2_ns
