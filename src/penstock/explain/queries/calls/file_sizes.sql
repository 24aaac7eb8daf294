-- Histogram of the largest known sizes of the regular data and output files that were read or written, in bins of
-- an octave: 2^exponent <= bytes < 2^(exponent + 1); empty files are in bin 0.  Files are grouped by path, because a
-- file opened both directly and as a staged copy has two numbers and a single path.
WITH sized AS (
    SELECT
        CASE WHEN read_bytes > 0 THEN 'read' ELSE 'write' END AS op_group,
        max(size_bytes) AS size_bytes
    FROM file_totals
    WHERE path_class IN ('data', 'output') AND kind = 'regular' AND size_bytes IS NOT NULL
        AND (read_bytes > 0 OR (written_bytes > 0 AND size_bytes > 0))
    GROUP BY coalesce(path, CAST(file AS VARCHAR)), 1
)
SELECT
    '' AS layer,
    op_group,
    CAST(floor(log2(greatest(1, size_bytes))) AS INTEGER) AS exponent,
    count(*) AS n
FROM sized
GROUP BY op_group, exponent
ORDER BY op_group, exponent
