-- Latencies: durations of calls on data and output files, in octave bins of nanoseconds:
-- 2^exponent <= ns < 2^(exponent + 1).
SELECT o.layer, o.op_group, b.bin // 16 AS exponent, CAST(sum(b.calls) AS BIGINT) AS n
FROM call_bins AS b
JOIN ops AS o ON o.op_number = b.op_number
WHERE b.path_class IN ('data', 'output')
GROUP BY o.layer, o.op_group, b.bin // 16
ORDER BY o.layer, o.op_group, 3
