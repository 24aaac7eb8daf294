-- like_reads: POSIX reads of data and output files, by bytes moved, because only reads of similar size are comparable.
-- Only reads that took longer than a read from memory count: 10 µs, plus copying at 10 GB/s.
--   moved_bin        floor(log2(bytes moved))
--   p50_ns, p90_ns, p99_ns  durations from bins of 1/16 octave: the middle of the percentile's bin
WITH bins AS (
    SELECT b.moved_bin, b.bin, sum(b.calls) AS calls
    FROM call_bins AS b
    JOIN ops AS o ON o.op_number = b.op_number
    WHERE o.layer = 'posix' AND o.op_group = 'read' AND o.is_access
        AND b.path_class IN ('data', 'output') AND b.moved_bin IS NOT NULL
        AND b.bin >= floor(16 * log2(10000 + 2 ** b.moved_bin / 10))
    GROUP BY b.moved_bin, b.bin
),
running AS (
    SELECT
        moved_bin,
        bin,
        sum(calls) OVER (PARTITION BY moved_bin ORDER BY bin) AS up_to,
        sum(calls) OVER (PARTITION BY moved_bin) AS total
    FROM bins
)
SELECT
    moved_bin,
    CAST(any_value(total) AS BIGINT) AS calls,
    2 ** ((min(bin) FILTER (WHERE up_to >= 0.50 * total) + 0.5) / 16) AS p50_ns,
    2 ** ((min(bin) FILTER (WHERE up_to >= 0.90 * total) + 0.5) / 16) AS p90_ns,
    2 ** ((min(bin) FILTER (WHERE up_to >= 0.99 * total) + 0.5) / 16) AS p99_ns
FROM running
GROUP BY moved_bin
