-- Counters of the calls past the trace budget, by rank, layer, file and kind as in darshan_calls.  The order of the
-- calls and the bytes moved by the longest call are not known.
SELECT
    r.rank,
    k.layer = 'stdio' AS is_stdio,
    n.number,
    k.kind_number AS kind,
    k.timer_number AS timer,
    CAST(sum(f.calls - f.errors) AS BIGINT) AS calls,
    CAST(sum(f.moved_bytes) AS BIGINT) AS moved_bytes,
    CAST(sum(f.duration_ns) AS BIGINT) AS duration_ns,
    max(f.max_duration_ns) AS max_duration_ns,
    min(f.first_ns) AS first_ns,
    max(f.last_ns) AS last_ns,
    coalesce(max(f.max_end_bytes), 0) AS max_end_bytes,
    CAST(sum(f.bucket_0 + f.empty) AS BIGINT) AS bucket_0,
    CAST(sum(f.bucket_1) AS BIGINT) AS bucket_1,
    CAST(sum(f.bucket_2) AS BIGINT) AS bucket_2,
    CAST(sum(f.bucket_3) AS BIGINT) AS bucket_3,
    CAST(sum(f.bucket_4) AS BIGINT) AS bucket_4,
    CAST(sum(f.bucket_5) AS BIGINT) AS bucket_5,
    CAST(sum(f.bucket_6) AS BIGINT) AS bucket_6,
    CAST(sum(f.bucket_7) AS BIGINT) AS bucket_7,
    CAST(sum(f.bucket_8) AS BIGINT) AS bucket_8,
    CAST(sum(f.bucket_9) AS BIGINT) AS bucket_9
FROM folded_raw AS f
JOIN darshan_kinds AS k ON k.op_number = f.op_number
JOIN darshan_names AS n ON n.file = f.file
JOIN darshan_ranks AS r ON r.process = f.process
WHERE f.calls > f.errors
GROUP BY r.rank, is_stdio, n.number, k.kind_number, k.timer_number
