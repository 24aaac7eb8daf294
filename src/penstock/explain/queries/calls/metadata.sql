-- Metadata calls on data files and folders in the wall time: open, close, stat, list ...  A seek needs no
-- answer from storage and does not count.  A worker's calls count from the start of the worker loop: before,
-- the worker imports modules.
--   opens    successful opens;  failed: calls ended with an error, such as a missing path
--   blocked_files, blocked_opens, blocked_s  files with a mean open time over a second, the number of opens
--            of the files, and the time in the opens: a pipe, or a server without an answer
--   files    regular data files with metadata calls
WITH extent AS (
    SELECT min(first_ns) AS from_ns, max(last_ns) AS to_ns FROM mains
),
loops AS (
    SELECT process, min(start_ns) AS from_ns FROM spans WHERE kind = 'span' AND name = 'worker' GROUP BY process
),
by_file AS (  -- summed by file first: a million files then need no set of the files seen
    SELECT
        e.file,
        count(*) AS calls,
        count(*) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen') AND e.errno = 0) AS opens,
        count(*) FILTER (WHERE e.errno <> 0) AS failed,
        sum(e.duration_ns) AS ns,
        count(*) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen')) AS tried,
        coalesce(sum(e.duration_ns) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen')), 0) AS open_ns
    FROM file_calls AS e
    JOIN ops AS o ON o.op_number = e.op_number
    CROSS JOIN extent AS x
    LEFT JOIN loops AS l ON l.process = e.process
    WHERE o.op_group = 'metadata' AND o.layer = 'posix' AND o.op <> 'lseek' AND e.path_class = 'data'
        AND e.start_ns >= greatest(x.from_ns, l.from_ns) AND e.start_ns < x.to_ns
    GROUP BY e.file
),
by_name AS (  -- a file opened as itself and as a staged copy has two numbers and a single path
    SELECT
        max(f.kind) AS kind,
        sum(b.calls) AS calls,
        sum(b.opens) AS opens,
        sum(b.failed) AS failed,
        sum(b.ns) AS ns,
        sum(b.tried) AS tried,
        sum(b.open_ns) AS open_ns
    FROM by_file AS b
    JOIN files AS f ON f.file = b.file
    GROUP BY coalesce(f.path, CAST(f.file AS VARCHAR))
)
SELECT
    CAST(coalesce(sum(b.calls), 0) AS BIGINT) AS calls,
    CAST(coalesce(sum(b.opens), 0) AS BIGINT) AS opens,
    CAST(coalesce(sum(b.failed), 0) AS BIGINT) AS failed,
    count(*) FILTER (WHERE b.kind = 'regular') AS files,
    coalesce(sum(b.ns), 0) / 1e9 AS time_s,
    count(*) FILTER (WHERE b.open_ns > 1e9 * b.tried) AS blocked_files,
    CAST(coalesce(sum(b.tried) FILTER (WHERE b.open_ns > 1e9 * b.tried), 0) AS BIGINT) AS blocked_opens,
    coalesce(sum(b.open_ns) FILTER (WHERE b.open_ns > 1e9 * b.tried), 0) / 1e9 AS blocked_s
FROM by_name AS b
