-- blocking_files: by file and op, the part of its calls' time in which the step loop was blocked by them.
SELECT
    file,
    op_number,
    CAST(round(sum(ns)) AS BIGINT) AS ns,
    CAST(round(sum(held_ns)) AS BIGINT) AS held_ns
FROM blocking_calls
GROUP BY file, op_number
