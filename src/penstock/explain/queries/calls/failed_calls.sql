-- failed_calls: the single calls on files that failed as no call does where storage, space and rights are
-- in order.  What fails in any program is left out: paths that are looked for in vain (ENOENT, ENOTDIR),
-- EEXIST, EAGAIN, ENOTTY, what a file system does not know (EINVAL, ENOTSUP, EXDEV), and all that fails on
-- pipes and sockets.
--   5 EIO, 12 ENOMEM, 23 ENFILE, 24 EMFILE, 27 EFBIG, 28 ENOSPC, 107 ENOTCONN, 108 ESHUTDOWN, 110 ETIMEDOUT,
--   112 EHOSTDOWN, 116 ESTALE, 117 EUCLEAN, 121 EREMOTEIO, 122 EDQUOT
--   13 EACCES and 30 EROFS  of data and output: programs try where they may write their own caches; and not
--   where only rights were asked for, nor of hidden files, which are such caches
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
