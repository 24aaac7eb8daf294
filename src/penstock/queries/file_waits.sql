-- file_waits: what a thread may stand still in for a file's sake: its file calls, and page faults of
-- mapped files that waited.
SELECT process, thread, op_number, file, path_class, start_ns, duration_ns, moved_bytes
FROM file_calls
UNION ALL
SELECT process, thread, op_number, file, path_class, start_ns, duration_ns, 0
FROM waited_faults
