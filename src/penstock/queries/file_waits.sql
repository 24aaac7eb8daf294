-- file_waits: what a thread may stand still in for a file's sake: its file calls, and page faults of
-- mapped files that waited.
--   held_ns  the part of the time in which storage may have held the thread up; NULL: not ended.  None of
--            a call that is as short as one served from memory: 10 µs, and copying at 10 GB/s.  No device
--            and no network answers so soon
SELECT process, thread, op_number, file, path_class, start_ns, duration_ns, moved_bytes,
    CASE WHEN duration_ns < 10000 + moved_bytes / 10 THEN 0 ELSE duration_ns END AS held_ns
FROM file_calls
UNION ALL
SELECT process, thread, op_number, file, path_class, start_ns, duration_ns, 0, duration_ns
FROM waited_faults
