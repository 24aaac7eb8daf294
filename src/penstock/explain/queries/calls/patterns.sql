-- The order of reads in large data files (4 MiB and more), from POSIX reads that moved bytes.
--   random    reads that begin before the end of the thread's previous read of the file, or more than 128 KiB
--             after the end (the kernel's read-ahead has already fetched nearer data).  Never random: a thread's
--             first read of a file; a read at offset 0, where a pass through the file begins; a read of 1 MiB and
--             more, because the read takes longer than the seek
--   random_s  time in random reads
--   blocking_s  the step loop's wait for reads of large data files
--   random_blocking_s  the part of blocking_s for random reads, by the share of random reads in each file's read time
--   path      of the file with the largest random_blocking_s
-- Of more than two million reads, only evenly spaced time slices are examined.
WITH large AS (
    SELECT file
    FROM file_totals
    WHERE layer = 'posix' AND path_class = 'data' AND kind = 'regular'
        AND size_bytes >= 4194304 AND read_bytes > 0
),
every AS (
    SELECT
        greatest(1, CAST(ceil(count(*) / 2e6) AS BIGINT)) AS nth,
        greatest(1, (max(start_ns) - min(start_ns)) // 100000) AS ns
    FROM file_calls
    WHERE file IN (FROM large)
),
reads AS (
    SELECT e.process, e.thread, e.file, e.start_ns, e.duration_ns, e.moved_bytes, e.offset_bytes
    FROM data_reads AS e
    CROSS JOIN every AS v
    WHERE e.file IN (FROM large)
        AND e.offset_bytes IS NOT NULL
        AND (e.start_ns // v.ns) % v.nth = 0
),
placed AS (
    SELECT
        *,
        offset_bytes - lag(offset_bytes + moved_bytes) OVER (
            PARTITION BY process, thread, file ORDER BY start_ns
        ) AS gap
    FROM reads
),
judged AS (
    SELECT *, offset_bytes > 0 AND moved_bytes < 1048576
        AND (gap < 0 OR gap > 131072) AS is_random FROM placed
),
per_file AS (
    SELECT
        file,
        count(*) AS reads,
        count(*) FILTER (WHERE is_random) AS random,
        sum(moved_bytes) AS bytes,
        coalesce(sum(moved_bytes) FILTER (WHERE is_random), 0) AS random_bytes,
        coalesce(sum(duration_ns) FILTER (WHERE is_random), 0) AS random_ns,
        sum(duration_ns) AS ns
    FROM judged
    GROUP BY file
),
blocking AS (
    SELECT b.file, sum(b.held_ns) AS ns
    FROM blocking_files AS b
    JOIN ops AS o ON o.op_number = b.op_number
    WHERE o.layer = 'posix' AND o.op_group = 'read'
    GROUP BY b.file
)
SELECT
    count(*) AS files,
    (SELECT nth FROM every) AS nth,
    CAST(coalesce(sum(p.reads), 0) AS BIGINT) AS reads,
    CAST(coalesce(sum(p.random), 0) AS BIGINT) AS random,
    CAST(coalesce(sum(p.random_bytes), 0) AS BIGINT) AS random_bytes,
    coalesce(sum(p.random_ns), 0) / 1e9 AS random_s,
    coalesce(sum(b.ns), 0) / 1e9 / greatest(1, (SELECT count(*) FROM mains)) AS blocking_s,
    coalesce(sum(b.ns * p.random_ns / nullif(p.ns, 0)), 0) / 1e9
        / greatest(1, (SELECT count(*) FROM mains)) AS random_blocking_s,
    arg_max(f.path, coalesce(b.ns, 0) * p.random_ns / greatest(1, p.ns) + p.random / 1e9) AS path
FROM per_file AS p
JOIN files AS f ON f.file = p.file
LEFT JOIN blocking AS b ON b.file = p.file
