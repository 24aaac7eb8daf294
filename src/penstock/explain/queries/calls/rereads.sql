-- Data files, and files made by the job, that a process read three times or more per epoch of the loader (mean);
-- one row per file (the first 50, most bytes read again first).  Candidates are files read three times as
-- often as the number of epochs times the number of main processes.  Only processes that fetch batches count.
--   process, passes  the process with the most reads of the file per epoch; number of epochs of the process
--   times      bytes read by the process / size / passes
--   opens      opens of the file by the process
--   read_bytes bytes of the file read by all fetching processes;  mean_bytes: mean size of a read
--   blocking_s time for which reads of the file blocked the step loop; a mean over main processes
WITH passes AS (
    SELECT process, count(DISTINCT iterator) AS passes FROM fetches GROUP BY process
),
most AS (
    SELECT count(*) * greatest(1, max(n)) AS passes
    FROM (SELECT main, count(DISTINCT iterator) AS n FROM fetches GROUP BY main)
),
candidates AS (
    SELECT file, max(size_bytes) AS size_bytes
    FROM file_totals
    WHERE path_class IN ('data', 'output') AND kind = 'regular' AND size_bytes > 0
        AND read_times >= 3 * (SELECT passes FROM most)
    GROUP BY file
),
moved AS (
    SELECT
        c.process,
        c.file,
        o.layer,
        sum(c.moved_bytes) FILTER (WHERE o.is_access AND o.op_group = 'read') AS bytes,
        sum(c.calls) FILTER (WHERE o.is_access AND o.op_group = 'read') AS reads,
        coalesce(sum(c.calls) FILTER (WHERE o.op IN ('open', 'fopen')), 0) AS opens
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE c.file IN (SELECT file FROM candidates)
        AND c.process IN (SELECT process FROM passes)
    GROUP BY c.process, c.file, o.layer
),
chosen AS (
    SELECT process, file, max(bytes) AS bytes, max(reads) AS reads, max(opens) AS opens
    FROM moved
    GROUP BY process, file
),
rated AS (
    SELECT
        m.file,
        m.process,
        m.bytes,
        m.reads,
        m.opens,
        p.passes,
        d.size_bytes,
        m.bytes / d.size_bytes / p.passes AS times
    FROM chosen AS m
    JOIN passes AS p ON p.process = m.process
    JOIN candidates AS d ON d.file = m.file
    WHERE m.bytes > 0
),
blocking AS (
    SELECT b.file, sum(b.ns) AS ns
    FROM blocking_files AS b
    JOIN ops AS o ON o.op_number = b.op_number
    WHERE o.layer = 'posix' AND o.op_group = 'read'
    GROUP BY b.file
)
SELECT
    f.path,
    CAST(max(r.size_bytes) AS BIGINT) AS size_bytes,
    arg_max(r.process, r.times) AS process,
    CAST(arg_max(r.passes, r.times) AS BIGINT) AS passes,
    max(r.times) AS times,
    CAST(arg_max(r.opens, r.times) AS BIGINT) AS opens,
    CAST(sum(r.bytes) AS BIGINT) AS read_bytes,
    sum(r.bytes) / sum(r.reads) AS mean_bytes,
    coalesce(any_value(b.ns), 0) / 1e9 / greatest(1, (SELECT count(*) FROM mains)) AS blocking_s
FROM rated AS r
JOIN files AS f ON f.file = r.file
LEFT JOIN blocking AS b ON b.file = r.file
GROUP BY r.file, f.path
HAVING max(r.times) >= 3
ORDER BY sum(r.bytes) - max(r.size_bytes) DESC, f.path
LIMIT 50
