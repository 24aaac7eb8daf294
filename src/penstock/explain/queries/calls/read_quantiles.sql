-- read_quantiles: median and 99th percentile, in ns, of the durations of POSIX reads of data and output files; reads
-- of 0 bytes are excluded.  A quantile is the middle of a bin of 1/16 octave, so the error is at most 2.2 %.
WITH bins AS (
    SELECT b.bin, sum(b.calls) AS calls
    FROM call_bins AS b
    JOIN ops AS o ON o.op_number = b.op_number
    WHERE o.layer = 'posix' AND o.op_group = 'read' AND o.is_access
        AND b.path_class IN ('data', 'output') AND NOT b.is_empty
    GROUP BY b.bin
),
running AS (
    SELECT bin, sum(calls) OVER (ORDER BY bin) AS up_to, sum(calls) OVER () AS total FROM bins
)
SELECT
    CAST(any_value(total) AS BIGINT) AS calls,
    2 ** ((min(bin) FILTER (WHERE up_to >= 0.50 * total) + 0.5) / 16) AS p50_ns,
    2 ** ((min(bin) FILTER (WHERE up_to >= 0.99 * total) + 0.5) / 16) AS p99_ns
FROM running
