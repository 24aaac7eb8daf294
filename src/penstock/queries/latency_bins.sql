-- latency_bins: finished file calls by op, class of path and duration, in bins of 1/16 octave:
-- bin = floor(16 * log2(duration in ns)).  is_empty: the call moved nothing.
SELECT
    op_number,
    path_class,
    moved_bytes = 0 AS is_empty,
    CAST(floor(16 * log2(greatest(1, duration_ns))) AS INTEGER) AS bin,
    count(*) AS calls
FROM file_calls
WHERE duration_ns IS NOT NULL
GROUP BY op_number, path_class, is_empty, bin
