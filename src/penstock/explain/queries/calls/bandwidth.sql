-- Bandwidth over the run in at most 600 equal bins, three pieces of `binned` each: bytes moved by calls
-- on data and output files.  Layers are kept apart.
--   bin_s   the bin's width
SELECT
    o.layer,
    o.op_group,
    b.path_class,
    b.bin // 3 AS bin,
    3 * any_value(b.piece_ns) / 1e9 AS bin_s,
    CAST(sum(b.moved_bytes) AS DOUBLE) AS moved_bytes
FROM binned AS b
JOIN ops AS o ON o.op_number = b.op_number
WHERE o.is_access AND b.path_class IN ('data', 'output') AND b.moved_bytes > 0
GROUP BY o.layer, o.op_group, b.path_class, 4
ORDER BY o.layer, o.op_group, b.path_class, 4
