-- file_kinds: files of a class other than data, and pipes, sockets and terminals, which are no files: a call on a
-- pipe, a socket or a terminal waits for the other end, not for storage.  Nor are objects of the kernel without a
-- file behind (anon_inode: eventfd, timerfd) files.  Data files have no row because data
-- files may be a hundred times as many, and each call is looked up here.  The shared memory of frameworks
-- (of class system) is no storage either.
SELECT
    file,
    path_class,
    kind NOT IN ('pipe', 'socket', 'terminal')
        AND NOT (path_class = 'system' AND (
            starts_with(path, '/dev/shm') OR starts_with(path, '/memfd:') OR starts_with(path, 'anon_inode:')
        ))
        AS is_file
FROM files
WHERE path_class <> 'data' OR kind IN ('pipe', 'socket', 'terminal')
