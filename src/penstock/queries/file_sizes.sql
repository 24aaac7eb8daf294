-- Sizes of the regular data and output files that were read or written, the largest known, in bins of
-- one octave: 2^bin <= bytes < 2^(bin + 1); empty files are in bin 0.
WITH sized AS (
    SELECT DISTINCT
        file,
        CASE WHEN read_bytes > 0 THEN 'read' ELSE 'write' END AS op_group,
        size_bytes
    FROM file_totals
    WHERE path_class IN ('data', 'output') AND kind = 'regular' AND size_bytes IS NOT NULL
        AND (read_bytes > 0 OR (written_bytes > 0 AND size_bytes > 0))
)
SELECT
    '' AS layer,
    op_group,
    CAST(floor(log2(greatest(1, size_bytes))) AS INTEGER) AS bin,
    count(*) AS files
FROM sized
GROUP BY op_group, bin
ORDER BY op_group, bin
