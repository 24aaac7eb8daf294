-- file_waits: possible standstills of a thread for a file: the thread's file calls, and the thread's page faults of
-- mapped files with a wait for the page.
--   held_ns  the time for which storage may have delayed the thread; NULL: the call has not ended.  0 for a call no
--            longer than a read from memory (10 µs, and copying at 10 GB/s): no device and no network answers so
--            soon.  For a call with an account (accounts): the duration less the CPU time and the delay of the account
--   delay_ns  the time without a CPU, from the account; 0 without an account
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
