-- One row for each process, file and op: number of calls, bytes, time and access pattern.
-- A row covers the kept events, and the events that the recorder folded once the budget was used up.
--
-- Only finished calls count.  An access is a finished call, without an error, of an op that moves
-- bytes (reads, writes and copies; not fsync and similar ops).  The previous access is the process's
-- latest earlier access to the file.  The classes below count accesses:
--   empty        moved no byte: a read at the end of the file.  No class below counts an empty access.
--   sequential   begins at offset 0, or at or after the end of the previous access of the same op.
--                Offset 0 begins a pass through the file, in the first epoch and in later epochs.
--   consecutive  begins at offset 0, or exactly at the end of the previous access of the same op.
--   unaligned    begins at an offset other than a multiple of 4096.
--   switches     the previous access had the other direction (read, write).
--   bucket_0 .. bucket_9  by bytes moved, with inclusive upper bounds: 100, 1024, 10240, 102400, 1048576,
--                4194304, 10485760, 104857600, 1073741824, more: DARSHAN_BUCKET_INC in darshan-common.h.
--   sizes        the four commonest byte counts of an access.
--   strides      the four commonest distances from the end of the previous access of the same op to the
--                begin of the access.
-- In an imported run, a counter that the other tool did not report is NULL: not known.
-- Accesses without an offset (pipes, calls on unknown files) are not part of a pattern.
--
-- `finished`, `placed` and `sized` read the same events for different columns, so a query pays only for
-- the columns in its SELECT: one sort of accesses for the pattern, another sort for sizes or strides.
WITH calls AS (
    SELECT e.process, e.file, e.op_number, e.start_ns, e.duration_ns, e.errno, e.asked_bytes,
        e.moved_bytes, e.offset_bytes, o.op_group, o.is_access AND e.errno = 0 AS is_access
    FROM events_raw e JOIN ops o ON o.op_number = e.op_number
    WHERE e.duration_ns IS NOT NULL
), finished AS (
    SELECT process, file, op_number,
        count(*) AS calls,
        count(*) FILTER (WHERE errno <> 0) AS errors,
        sum(asked_bytes) AS asked_bytes,
        sum(moved_bytes) AS moved_bytes,
        sum(duration_ns) AS duration_ns,
        max(duration_ns) AS max_duration_ns,
        min(start_ns) AS first_ns,
        max(start_ns + duration_ns) AS last_ns,
        count(*) FILTER (WHERE is_access AND moved_bytes = 0) AS empty,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 1 AND 100) AS bucket_0,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 101 AND 1024) AS bucket_1,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 1025 AND 10240) AS bucket_2,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 10241 AND 102400) AS bucket_3,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 102401 AND 1048576) AS bucket_4,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 1048577 AND 4194304) AS bucket_5,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 4194305 AND 10485760) AS bucket_6,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 10485761 AND 104857600) AS bucket_7,
        count(*) FILTER (WHERE is_access AND moved_bytes BETWEEN 104857601 AND 1073741824) AS bucket_8,
        count(*) FILTER (WHERE is_access AND moved_bytes > 1073741824) AS bucket_9
    FROM calls
    GROUP BY process, file, op_number
), accesses AS (
    SELECT process, file, op_number, op_group, 'kept' AS kind, start_ns, offset_bytes,
        offset_bytes + moved_bytes AS end_bytes
    FROM calls
    WHERE is_access AND moved_bytes > 0 AND file IS NOT NULL AND offset_bytes IS NOT NULL
    -- The recorder does not know the access before the first folded access, so the first folded access
    -- is classified here.  The first access kept after the folded accesses follows the last folded access.
    UNION ALL
    SELECT process, file, op_number, op_group, 'first', first_ns, first_offset_bytes, last_end_bytes
    FROM folded_raw f JOIN ops o USING (op_number)
    WHERE first_offset_bytes IS NOT NULL
    UNION ALL
    SELECT process, file, op_number, op_group, 'last', last_ns, NULL, last_end_bytes
    FROM folded_raw f JOIN ops o USING (op_number)
    WHERE first_offset_bytes IS NOT NULL
), placed AS (
    SELECT process, file, op_number, kind, op_group, offset_bytes, end_bytes,
        offset_bytes - lag(end_bytes) OVER same_op AS stride,
        lag(op_group) OVER same_file AS group_before,
        lag(kind) OVER same_file AS kind_before
    FROM accesses
    -- The first and the last folded access may be the same access.
    WINDOW same_op AS (PARTITION BY process, file, op_number ORDER BY start_ns, kind = 'last'),
        same_file AS (PARTITION BY process, file ORDER BY start_ns, kind = 'last')
), numbered AS (
    -- The first access of each stride represents all accesses of the stride.
    SELECT *, count(*) OVER alike AS stride_calls, row_number() OVER alike AS stride_number
    FROM placed
    WHERE kind <> 'last'
    WINDOW alike AS (PARTITION BY process, file, op_number, stride)
), pattern AS (
    SELECT process, file, op_number,
        max(end_bytes) AS max_end_bytes,
        count(*) FILTER (WHERE offset_bytes = 0 OR stride >= 0) AS sequential,
        count(*) FILTER (WHERE offset_bytes = 0 OR stride = 0) AS consecutive,
        count(*) FILTER (WHERE group_before <> op_group AND (kind = 'kept' OR kind_before = 'kept'))
            AS switches,
        count(*) FILTER (WHERE kind = 'kept' AND offset_bytes % 4096 <> 0) AS unaligned,
        arg_max({'value': stride, 'calls': stride_calls}, stride_calls, 4)
            FILTER (WHERE stride IS NOT NULL AND stride_number = 1) AS strides
    FROM numbered
    GROUP BY process, file, op_number
), alike AS (
    SELECT process, file, op_number, moved_bytes,
        count(*) OVER same_size AS size_calls, row_number() OVER same_size AS size_number
    FROM calls
    WHERE is_access AND moved_bytes > 0
    WINDOW same_size AS (PARTITION BY process, file, op_number, moved_bytes)
), sized AS (
    SELECT process, file, op_number,
        arg_max({'value': moved_bytes, 'calls': size_calls}, size_calls, 4)
            FILTER (WHERE size_number = 1) AS sizes
    FROM alike
    GROUP BY process, file, op_number
), every AS (
    SELECT *, false AS folded FROM finished
    UNION ALL BY NAME SELECT * FROM pattern
    UNION ALL BY NAME SELECT * FROM sized
    UNION ALL BY NAME SELECT *, true AS folded FROM folded_raw
)
SELECT b.process, b.file, any_value(f.path) AS path, any_value(f.path_class) AS path_class,
    any_value(o.layer) AS layer, any_value(o.op) AS op,
    coalesce(sum(calls), 0)::BIGINT AS calls,
    sum(errors)::BIGINT AS errors,
    sum(asked_bytes)::BIGINT AS asked_bytes,
    coalesce(sum(moved_bytes), 0)::BIGINT AS moved_bytes,
    sum(duration_ns)::BIGINT AS duration_ns,
    max(max_duration_ns) AS max_duration_ns,
    min(first_ns) AS first_ns,
    max(last_ns) AS last_ns,
    max(max_end_bytes) AS max_end_bytes,
    CASE WHEN bool_or(b.folded AND b.sequential IS NULL) IS NOT TRUE
        THEN coalesce(sum(sequential), 0)::BIGINT END AS sequential,
    CASE WHEN bool_or(b.folded AND b.consecutive IS NULL) IS NOT TRUE
        THEN coalesce(sum(consecutive), 0)::BIGINT END AS consecutive,
    CASE WHEN bool_or(b.folded AND b.switches IS NULL) IS NOT TRUE
        THEN coalesce(sum(switches), 0)::BIGINT END AS switches,
    CASE WHEN bool_or(b.folded AND b.unaligned IS NULL) IS NOT TRUE
        THEN coalesce(sum(unaligned), 0)::BIGINT END AS unaligned,
    CASE WHEN bool_or(b.folded AND b.empty IS NULL) IS NOT TRUE
        THEN coalesce(sum(empty), 0)::BIGINT END AS empty,
    coalesce(sum(bucket_0), 0)::BIGINT AS bucket_0,
    coalesce(sum(bucket_1), 0)::BIGINT AS bucket_1,
    coalesce(sum(bucket_2), 0)::BIGINT AS bucket_2,
    coalesce(sum(bucket_3), 0)::BIGINT AS bucket_3,
    coalesce(sum(bucket_4), 0)::BIGINT AS bucket_4,
    coalesce(sum(bucket_5), 0)::BIGINT AS bucket_5,
    coalesce(sum(bucket_6), 0)::BIGINT AS bucket_6,
    coalesce(sum(bucket_7), 0)::BIGINT AS bucket_7,
    coalesce(sum(bucket_8), 0)::BIGINT AS bucket_8,
    coalesce(sum(bucket_9), 0)::BIGINT AS bucket_9,
    commonest(flatten(list(b.sizes) FILTER (WHERE b.sizes IS NOT NULL))) AS sizes,
    commonest(flatten(list(b.strides) FILTER (WHERE b.strides IS NOT NULL))) AS strides,
    bool_or(b.folded) AS folded
FROM every b JOIN ops o ON o.op_number = b.op_number LEFT JOIN files f ON f.file = b.file
GROUP BY b.process, b.file, b.op_number
