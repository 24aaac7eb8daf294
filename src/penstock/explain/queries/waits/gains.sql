-- gains: a thread's intakes of data: reads of data files, pipes and sockets, calls that blocked and then received
-- bytes, and mapped pages of data files for which the thread waited.  A thread that writes at least as many bytes to a
-- socket as the thread reads from the socket exchanges something else (metrics and an acknowledgement, gradients and
-- weights): the thread's reads of the socket are excluded.  blocked.received_bytes is already net of the bytes sent.
--   bytes         bytes read or received; 4096 for a page
--   stream_bytes  the part of bytes from pipes and sockets
--   is_received   true: bytes received by a call that blocked
WITH sockets AS (
    SELECT file FROM files WHERE kind = 'socket' AND path <> 'socket:unix'
),
exchanging AS (
    SELECT e.process, e.thread, e.file
    FROM events_raw AS e
    JOIN sockets AS s ON s.file = e.file
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE e.errno = 0 AND o.is_access AND o.op_group IN ('read', 'write')
    GROUP BY e.process, e.thread, e.file
    HAVING sum(CASE WHEN o.op_group = 'write' THEN e.moved_bytes ELSE 0 END)
        >= sum(CASE WHEN o.op_group = 'read' THEN e.moved_bytes ELSE 0 END)
)
SELECT e.process, e.thread, e.start_ns, e.moved_bytes AS bytes,
    CASE WHEN k.file IS NULL THEN 0 ELSE e.moved_bytes END AS stream_bytes, false AS is_received
FROM events_raw AS e
LEFT JOIN file_kinds AS k ON k.file = e.file
LEFT JOIN exchanging AS x ON x.process = e.process AND x.thread = e.thread AND x.file = e.file
WHERE x.file IS NULL AND e.op_number IN (SELECT op_number FROM ops WHERE op_group = 'read' AND is_access)
    AND e.errno = 0 AND e.moved_bytes > 0 AND NOT coalesce(k.is_file, false)
UNION ALL
SELECT process, thread, start_ns, received_bytes, received_bytes, true FROM blocked WHERE received_bytes > 0
UNION ALL
SELECT process, thread, start_ns, 4096, 0, false FROM waited_faults WHERE path_class = 'data'
