-- Sizes of requests: bytes requested by reads and writes of data and output files, in octave bins:
-- 2^exponent <= bytes < 2^(exponent + 1).  Empty reads at the end of a file are excluded (counted in reading.sql).
SELECT o.layer, o.op_group, b.size_bin AS exponent, CAST(sum(b.calls) AS BIGINT) AS n
FROM call_bins AS b
JOIN ops AS o ON o.op_number = b.op_number
WHERE o.is_access
    AND b.path_class IN ('data', 'output')
    AND b.size_bin IS NOT NULL
    AND NOT (o.op_group = 'read' AND b.is_empty AND NOT b.is_failed)
GROUP BY o.layer, o.op_group, b.size_bin
ORDER BY o.layer, o.op_group, b.size_bin
