-- call_bins: finished file calls by op, class of path, duration and size.
--   bin       floor(16 * log2(duration in ns)): bins of 1/16 octave
--   size_bin  floor(log2(requested bytes)); NULL: none
--   moved_bin floor(log2(moved bytes)); NULL: none
--   is_empty  the call moved no bytes;  is_failed: the call ended with an error
SELECT
    op_number,
    path_class,
    moved_bytes = 0 AS is_empty,
    errno <> 0 AS is_failed,
    CAST(floor(16 * log2(greatest(1, duration_ns))) AS INTEGER) AS bin,
    CAST(CASE WHEN asked_bytes > 0 THEN floor(log2(asked_bytes)) END AS INTEGER) AS size_bin,
    CAST(CASE WHEN moved_bytes > 0 THEN floor(log2(moved_bytes)) END AS INTEGER) AS moved_bin,
    count(*) AS calls
FROM file_calls
WHERE duration_ns IS NOT NULL
GROUP BY ALL
