-- failed_calls: single calls on files with a failure that points to storage, space or rights.  Failures of
-- any healthy program do not count: paths searched in vain (ENOENT, ENOTDIR), EEXIST, EAGAIN, ENOTTY, operations
-- unknown to the file system (EINVAL, ENOTSUP, EXDEV), and all failures on pipes and sockets.
--   5 EIO, 12 ENOMEM, 23 ENFILE, 24 EMFILE, 27 EFBIG, 28 ENOSPC, 107 ENOTCONN, 108 ESHUTDOWN, 110 ETIMEDOUT,
--   112 EHOSTDOWN, 116 ESTALE, 117 EUCLEAN, 121 EREMOTEIO, 122 EDQUOT
--   13 EACCES and 30 EROFS  only on data and output files: elsewhere, programs probe for a writable folder for
--   caches; not of calls that only ask for rights, nor of hidden files, where programs keep caches
SELECT
    e.process,
    e.thread,
    o.op,
    o.op_group,
    CAST(e.errno AS INTEGER) AS errno,
    e.file,
    e.start_ns
FROM file_calls AS e
JOIN ops AS o ON o.op_number = e.op_number
LEFT JOIN files AS f ON f.file = e.file
WHERE e.errno > 0
    AND coalesce(e.path_class, 'data') <> 'system'
    AND (
        e.errno IN (5, 12, 23, 24, 27, 28, 107, 108, 110, 112, 116, 117, 121, 122)
        OR (
            e.errno IN (13, 30)
            AND e.path_class IN ('data', 'output')
            AND o.op NOT IN ('access', 'stat', 'lstat', 'readlink', 'chmod')
            AND NOT contains(coalesce(f.path, ''), '/.')
        )
    )
