-- Page faults of mapped files, by file: the 20 files with the most time spent waiting.  Programs and libraries are
-- listed only if a fault waited.  Exact counts of the kernel's samples; bytes cannot be derived from faults,
-- because a single fault may load many pages.
--   major      faults that read a page
--   waited     minor faults of 10 µs and more: read-ahead was already reading the page
--   waited_s   time of all threads together in major faults and in minor faults that waited
--   mapped_s   time in the other minor faults: the page was in memory, and only had to be mapped
--   blocking_s  the part of waited_s in which the step loop waited for the faults
WITH counts AS (
    SELECT
        file,
        any_value(path) AS path,
        any_value(path_class) AS path_class,
        sum(major) AS major,
        sum(minor) AS minor,
        sum(waited) AS waited,
        sum(major_ns + waited_ns) AS waited_ns,
        sum(minor_ns - waited_ns) AS mapped_ns,
        max(max_ns) AS max_ns
    FROM fault_counts
    WHERE file IS NOT NULL AND path_class <> 'system'
    GROUP BY file
    HAVING any_value(path_class) <> 'library' OR sum(major + waited) > 0
),
blocking AS (
    SELECT b.file, sum(b.ns) AS ns
    FROM blocking_files AS b
    JOIN ops AS o ON o.op_number = b.op_number
    WHERE o.op_group = 'page fault'
    GROUP BY b.file
)
SELECT
    c.path,
    c.path_class,
    f.size_bytes,
    CAST(c.major AS BIGINT) AS major,
    CAST(c.minor AS BIGINT) AS minor,
    CAST(c.waited AS BIGINT) AS waited,
    c.waited_ns / 1e9 AS waited_s,
    c.mapped_ns / 1e9 AS mapped_s,
    c.max_ns / 1e9 AS max_s,
    coalesce(b.ns, 0) / 1e9 AS blocking_s,
    count(*) OVER () AS all_files
FROM counts AS c
LEFT JOIN files AS f ON f.file = c.file
LEFT JOIN blocking AS b ON b.file = c.file
ORDER BY c.path_class <> 'data', c.waited_ns DESC, c.major + c.minor DESC, c.path
LIMIT 20
