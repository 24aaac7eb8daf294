-- gains: where a thread took in data: reads of data files, pipes and sockets, calls that received bytes after they
-- blocked, and mapped pages of data files that the thread waited for.
--   bytes         of a page: 4096
--   stream_bytes  part of bytes: from pipes and sockets
--   is_received   of a call that blocked
SELECT e.process, e.thread, e.start_ns, e.moved_bytes AS bytes,
    CASE WHEN k.file IS NULL THEN 0 ELSE e.moved_bytes END AS stream_bytes, false AS is_received
FROM events_raw AS e
LEFT JOIN file_kinds AS k ON k.file = e.file
WHERE e.op_number IN (SELECT op_number FROM ops WHERE op_group = 'read' AND is_access)
    AND e.errno = 0 AND e.moved_bytes > 0 AND NOT coalesce(k.is_file, false)
UNION ALL
SELECT process, thread, start_ns, received_bytes, received_bytes, true FROM blocked WHERE received_bytes > 0
UNION ALL
SELECT process, thread, start_ns, 4096, 0, false FROM waited_faults WHERE path_class = 'data'
