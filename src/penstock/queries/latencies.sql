-- Latencies: durations of calls on data and output files, in bins of one octave of nanoseconds:
-- 2^bin <= ns < 2^(bin + 1).
SELECT o.layer, o.op_group, b.bin // 16 AS bin, CAST(sum(b.calls) AS BIGINT) AS calls
FROM call_bins AS b
JOIN ops AS o ON o.op_number = b.op_number
WHERE b.path_class IN ('data', 'output')
GROUP BY o.layer, o.op_group, b.bin // 16
ORDER BY o.layer, o.op_group, 3
