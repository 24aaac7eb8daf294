-- Sizes of requests: bytes asked for by reads and writes of data and output files, in bins of one octave:
-- 2^bin <= bytes < 2^(bin + 1).  Empty reads at the end of a file are left out (reading.sql counts them).
SELECT
    o.layer,
    o.op_group,
    CAST(floor(log2(e.asked_bytes)) AS INTEGER) AS bin,
    count(*) AS calls
FROM file_calls AS e
JOIN ops AS o ON o.op_number = e.op_number
WHERE o.is_access
    AND e.path_class IN ('data', 'output')
    AND e.asked_bytes > 0
    AND NOT (o.op_group = 'read' AND e.moved_bytes = 0 AND e.errno = 0)
GROUP BY o.layer, o.op_group, bin
ORDER BY o.layer, o.op_group, bin
