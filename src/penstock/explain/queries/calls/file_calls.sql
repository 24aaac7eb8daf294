-- file_calls: the single calls on files, and on what is not known to be none.  A mapping without a file
-- is memory, and to unmap one tells no file.
SELECT
    e.process,
    e.thread,
    e.op_number,
    e.file,
    CASE WHEN e.file IS NOT NULL THEN coalesce(k.path_class, 'data') END AS path_class,
    e.start_ns,
    e.duration_ns,
    e.offset_bytes,
    e.asked_bytes,
    e.moved_bytes,
    e.errno
FROM events_raw AS e
LEFT JOIN file_kinds AS k ON k.file = e.file
WHERE coalesce(k.is_file, true)
    AND e.op_number IN (SELECT op_number FROM ops WHERE op_group IN ('read', 'write', 'metadata'))
    AND (e.file IS NOT NULL OR e.op_number NOT IN (
        SELECT op_number FROM ops WHERE op IN ('mmap', 'munmap', 'msync')
    ))
