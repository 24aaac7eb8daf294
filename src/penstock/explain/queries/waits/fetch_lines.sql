-- The lines of code on which fetches spent CPU time, from samples of stacks; most CPU time first.
--   path      the source file; NULL: further lines together
--   line      line number in path; in the innermost function if a fetch runs installed packages only
--   function  the function around the line
--   called    the Python function called on the line; NULL: none, or a function written in C
--   samples   samples with CPU time of the fetching thread
--   cpu_s     CPU time of the samples
-- Notes hold sums from a process's start, so the last note on a line counts.
WITH noted AS (
    SELECT
        process,
        TRY_CAST(split_part(value, chr(9), 1) AS BIGINT) AS samples,
        TRY_CAST(split_part(value, chr(9), 2) AS BIGINT) AS cpu_us,
        split_part(value, chr(9), 3) AS path,
        TRY_CAST(split_part(value, chr(9), 4) AS BIGINT) AS line,
        split_part(value, chr(9), 5) AS function,
        split_part(value, chr(9), 6) AS called
    FROM notes
    WHERE key = 'fetch line'
),
sampled AS (
    SELECT process, path, line, function, called, max(samples) AS samples, max(cpu_us) AS cpu_us
    FROM noted
    WHERE samples > 0 AND cpu_us >= 0 AND line >= 0
    GROUP BY process, path, line, function, called
)
SELECT
    nullif(path, '') AS path,
    line,
    function,
    nullif(called, '') AS called,
    CAST(sum(samples) AS BIGINT) AS samples,
    sum(cpu_us) / 1e6 AS cpu_s
FROM sampled
GROUP BY path, line, function, called
ORDER BY cpu_s DESC, path, line, called
LIMIT 50
