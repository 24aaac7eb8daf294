-- waited_faults: single page faults of mapped files that waited, of known threads: major faults, and minor faults of
-- 10 µs and more.  In a shorter fault the page is already in memory, and the fault's time is CPU time.
SELECT
    f.process,
    f.thread,
    o.op_number,
    f.file,
    f.path_class,
    f.start_ns,
    f.duration_ns,
    f.offset_bytes
FROM faults AS f
JOIN ops AS o ON o.op = 'page fault'
WHERE f.process IS NOT NULL
    AND f.thread IS NOT NULL
    AND f.file IS NOT NULL
    AND f.duration_ns IS NOT NULL
    AND (f.kind = 'major' OR f.duration_ns >= 10000)
    AND f.path_class <> 'system'
