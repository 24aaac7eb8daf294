-- Time in POSIX calls on data and output files, a mean over the calling processes; for runs without a known waiting
-- process.  Calls of an unknown process (Darshan's records of files shared by all ranks) count as calls of all
-- processes.
--   reads, empty_reads  reads, and reads that moved no byte; NULL: not known
--   blocked_*           files with opens of more than a second on average, and the number and seconds of the
--                       opens: opens of a pipe, or of a file on a server that does not answer
--   opens, metadata     calls that opened a file; calls that moved no data
WITH callers AS (
    SELECT
        CASE
            WHEN bool_or(t.process IS NULL) THEN (SELECT count(*) FROM processes)
            ELSE count(DISTINCT t.process)
        END AS n
    FROM op_totals AS t
    JOIN ops AS o ON o.op_number = t.op_number
    WHERE o.layer = 'posix' AND t.path_class IN ('data', 'output')
),
opens AS (
    SELECT c.file, sum(c.calls) AS calls, sum(c.duration_ns) AS ns
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    LEFT JOIN file_kinds AS k ON k.file = c.file
    WHERE o.op = 'open' AND coalesce(k.path_class, 'data') IN ('data', 'output')
        AND coalesce(k.is_file, true)
    GROUP BY c.file
    HAVING sum(c.duration_ns) > 1e9 * sum(c.calls)
)
SELECT
    (SELECT n FROM callers) AS processes,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'read'), 0) / 1e9
        / greatest(1, (SELECT n FROM callers)) AS read_s,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'write'), 0) / 1e9
        / greatest(1, (SELECT n FROM callers)) AS write_s,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'metadata'), 0) / 1e9
        / greatest(1, (SELECT n FROM callers)) AS metadata_s,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0) AS BIGINT)
        AS reads,
    CAST(sum(t.empty) FILTER (WHERE o.is_access AND o.op_group = 'read') AS BIGINT) AS empty_reads,
    CAST(coalesce(sum(t.moved_bytes) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0) AS BIGINT)
        AS read_bytes,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen')), 0) AS BIGINT)
        AS opens,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.op_group = 'metadata'), 0) AS BIGINT) AS metadata,
    (SELECT count(*) FROM opens) AS blocked_files,
    CAST(coalesce((SELECT sum(calls) FROM opens), 0) AS BIGINT) AS blocked_opens,
    coalesce((SELECT sum(ns) FROM opens), 0) / 1e9 / greatest(1, (SELECT n FROM callers)) AS blocked_s
FROM op_totals AS t
JOIN ops AS o ON o.op_number = t.op_number
WHERE o.layer = 'posix' AND t.path_class IN ('data', 'output')
