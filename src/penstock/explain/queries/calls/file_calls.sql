-- file_calls: the single calls on files.  An object of unknown kind counts as a file.  A mapping call (mmap, munmap,
-- msync) without a file is excluded: the mapping is memory, and a munmap does not report a file.
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
