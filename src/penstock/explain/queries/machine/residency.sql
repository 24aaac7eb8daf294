-- The share of the data in memory when the program began and when the program had ended.
--   moment    before, after
--   hosts     number of hosts that examined files
--   files, size_bytes, resident_bytes  number of files examined, total size, and bytes in memory; of several
--             hosts, the numbers of the host with the least data in memory
--   left_out  more files exist, not examined: too many files, no time, or no permission
--   is_named  the files are the data set named by `--data`; else the opened files, known at the end only
WITH told AS (
    SELECT
        substr(key, 10) AS moment,
        TRY_CAST(split_part(value, chr(9), 1) AS BIGINT) AS files,
        TRY_CAST(split_part(value, chr(9), 2) AS BIGINT) AS size_bytes,
        TRY_CAST(split_part(value, chr(9), 3) AS BIGINT) AS resident_bytes,
        split_part(value, chr(9), 4) = 'more' AS left_out,
        split_part(value, chr(9), 5) = 'named' AS is_named
    FROM notes
    WHERE key IN ('resident before', 'resident after')
)
SELECT
    moment,
    count(*) AS hosts,
    arg_min(files, resident_bytes) AS files,
    arg_min(size_bytes, resident_bytes) AS size_bytes,
    min(resident_bytes) AS resident_bytes,
    bool_or(left_out) AS left_out,
    bool_or(is_named) AS is_named
FROM told
WHERE files IS NOT NULL AND size_bytes IS NOT NULL AND resident_bytes IS NOT NULL
GROUP BY moment
ORDER BY moment DESC
