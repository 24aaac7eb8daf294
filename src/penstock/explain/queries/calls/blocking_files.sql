-- blocking_files: by file and op, the part of the calls' time in which the calls blocked the step loop.
SELECT
    file,
    op_number,
    CAST(round(sum(ns)) AS BIGINT) AS ns,
    CAST(round(sum(held_ns)) AS BIGINT) AS held_ns
FROM blocking_calls
GROUP BY file, op_number
