-- Number of calls of a timeline by duration: at least 2^log2_ns ns and less than 2^(log2_ns + 1) ns.
SELECT CAST(floor(log2(greatest(duration_ns, 1))) AS INTEGER) AS log2_ns, count(*) AS calls
FROM timeline_shown
GROUP BY log2_ns
ORDER BY log2_ns
