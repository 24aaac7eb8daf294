-- The slices of a timeline's calls, by thread and start.  Calls of a thread shorter than pixel_ns that begin
-- within a single pixel are gathered into a slice, from the first call's start to the last call's end;
-- other calls have a slice each.  pixel_ns 0: no calls are gathered.
--   calls     in the slice; reads, writes: calls moving bytes in each direction
--   busy_ns   sum of the calls' durations;  moved_bytes, asked_bytes  sums
--   op_number, file, offset_bytes, errno  of the only call; of several calls the smallest value of each column
WITH gathered AS (
    SELECT
        c.process,
        c.thread,
        count(*) AS calls,
        min(c.op_number) AS op_number,
        min(c.file) AS file,
        min(c.start_ns) AS start_ns,
        max(c.end_ns) AS end_ns,
        CAST(sum(c.duration_ns) AS BIGINT) AS busy_ns,
        bool_or(c.is_in_flight) AS is_in_flight,
        min(c.offset_bytes) AS offset_bytes,
        CAST(sum(c.asked_bytes) AS BIGINT) AS asked_bytes,
        CAST(coalesce(sum(c.moved_bytes) FILTER (WHERE o.is_access), 0) AS BIGINT) AS moved_bytes,
        min(c.errno) AS errno,
        count(*) FILTER (WHERE c.errno <> 0) AS errors,
        count(*) FILTER (WHERE o.is_access AND o.op_group = 'read') AS reads,
        count(*) FILTER (WHERE o.is_access AND o.op_group = 'write') AS writes
    FROM timeline_shown AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE c.duration_ns < $pixel_ns
    GROUP BY c.process, c.thread, c.start_ns // greatest($pixel_ns, 1)
),
slices AS (
    SELECT * FROM gathered
    UNION ALL
    SELECT
        c.process,
        c.thread,
        1 AS calls,
        c.op_number,
        c.file,
        c.start_ns,
        c.end_ns,
        c.duration_ns AS busy_ns,
        c.is_in_flight,
        c.offset_bytes,
        c.asked_bytes,
        CASE WHEN o.is_access THEN c.moved_bytes ELSE 0 END AS moved_bytes,
        c.errno,
        CAST(c.errno <> 0 AS BIGINT) AS errors,
        CAST(o.is_access AND o.op_group = 'read' AS BIGINT) AS reads,
        CAST(o.is_access AND o.op_group = 'write' AS BIGINT) AS writes
    FROM timeline_shown AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE c.duration_ns >= $pixel_ns
)
SELECT
    process,
    thread,
    calls,
    CAST(op_number AS INTEGER) AS op_number,
    coalesce(file, -1) AS file,
    start_ns,
    end_ns,
    busy_ns,
    is_in_flight,
    coalesce(offset_bytes, -1) AS offset_bytes,
    asked_bytes,
    moved_bytes,
    CAST(errno AS INTEGER) AS errno,
    errors,
    reads,
    writes
FROM slices
ORDER BY process, thread, start_ns, end_ns DESC
