-- beginning_calls: file calls and page faults that waited, of a beginning's thread, summed by file; only in segments of
-- the kinds import and rest, because the other kinds already name the cause.
--   kind    of the segment
--   part    import (programs and libraries), listing (data: open, stat, list), reading (data), other files
--   cpu_ns  upper bound of the part of ns on a CPU: 20 µs per call for the kernel, and 1 ns per copied byte
SELECT
    b.process,
    s.kind,
    CASE
        WHEN c.path_class = 'library' THEN 'import'
        WHEN c.path_class = 'data' AND o.op_group = 'metadata' THEN 'listing'
        WHEN c.path_class = 'data' AND o.op_group IN ('read', 'page fault') THEN 'reading'
        ELSE 'other files'
    END AS part,
    c.file,
    count(*) AS calls,
    CAST(sum(CASE WHEN o.is_access AND o.op_group = 'read' THEN c.moved_bytes ELSE 0 END) AS BIGINT)
        AS read_bytes,
    CAST(sum(CASE WHEN o.is_access AND o.op_group = 'write' THEN c.moved_bytes ELSE 0 END) AS BIGINT)
        AS written_bytes,
    CAST(sum(least(s.to_ns - c.start_ns, coalesce(c.duration_ns, s.to_ns - c.start_ns))) AS BIGINT) AS ns,
    CAST(sum(least(
        coalesce(c.duration_ns, 0), 20000 + CASE WHEN o.is_access THEN c.moved_bytes ELSE 0 END
    )) AS BIGINT) AS cpu_ns
FROM file_waits AS c
JOIN beginnings AS b ON b.process = c.process AND b.thread = c.thread
ASOF JOIN segments AS s ON s.process = c.process AND s.from_ns <= c.start_ns
JOIN ops AS o ON o.op_number = c.op_number
WHERE s.kind IN ('import', 'rest') AND c.start_ns < s.to_ns
    AND c.start_ns < getvariable('begun_ns')
GROUP BY b.process, s.kind, 3, c.file
