-- Time in POSIX calls on data and output files, a mean over the processes that made any; for runs in
-- which nobody is known to have waited.
--   reads, empty_reads  reads, and those that moved nothing; NULL: not known
--   opens, metadata     calls that opened a file; calls that moved no data
SELECT
    count(DISTINCT t.process) AS processes,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'read'), 0) / 1e9
        / greatest(1, count(DISTINCT t.process)) AS read_s,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'write'), 0) / 1e9
        / greatest(1, count(DISTINCT t.process)) AS write_s,
    coalesce(sum(t.duration_ns) FILTER (WHERE o.op_group = 'metadata'), 0) / 1e9
        / greatest(1, count(DISTINCT t.process)) AS metadata_s,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0) AS BIGINT)
        AS reads,
    CAST(sum(t.empty) FILTER (WHERE o.is_access AND o.op_group = 'read') AS BIGINT) AS empty_reads,
    CAST(coalesce(sum(t.moved_bytes) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0) AS BIGINT)
        AS read_bytes,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen')), 0) AS BIGINT)
        AS opens,
    CAST(coalesce(sum(t.calls) FILTER (WHERE o.op_group = 'metadata'), 0) AS BIGINT) AS metadata
FROM op_totals AS t
JOIN ops AS o ON o.op_number = t.op_number
WHERE o.layer = 'posix' AND t.path_class IN ('data', 'output')
