-- file_waits: what a thread may stand still in for a file's sake: its file calls, and page faults of
-- mapped files that waited.
--   held_ns  the part of the time in which storage may have held the thread up; NULL: not ended.  None of
--            a call that is as short as one served from memory: 10 µs, and copying at 10 GB/s.  No device
--            and no network answers so soon.  Of a call with an account what that leaves
--   delay_ns  of it the time without a CPU, by the account; 0 without one
SELECT
    c.process,
    c.thread,
    c.op_number,
    c.file,
    c.path_class,
    c.start_ns,
    c.duration_ns,
    c.moved_bytes,
    CASE
        WHEN c.duration_ns IS NULL THEN NULL
        WHEN c.duration_ns < 10000 + c.moved_bytes / 10 THEN 0
        ELSE greatest(0, c.duration_ns - coalesce(a.cpu_ns + a.delay_ns, 0))
    END AS held_ns,
    coalesce(a.delay_ns, 0) AS delay_ns
FROM file_calls AS c
LEFT JOIN accounts AS a
    ON a.process = c.process AND a.thread = c.thread AND a.start_ns = c.start_ns
UNION ALL
SELECT process, thread, op_number, file, path_class, start_ns, duration_ns, 0, duration_ns, 0
FROM waited_faults
