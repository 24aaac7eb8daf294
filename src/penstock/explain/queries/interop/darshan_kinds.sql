-- darshan_kinds: the ops that Darshan counts, the kind of each op, and the Darshan time to which the op adds.
--   kind   read and write move bytes; sync is fsync, datasync is fdatasync; the other kinds have Darshan's names
--   timer  read, write or metadata; NULL: Darshan has no time for mmap
-- Renames are in darshan_renames.  kind_number and timer_number are positions in $kinds and $timers; 0: none.
WITH kinds(op, kind, timer) AS (
    VALUES
        ('open', 'open', 'metadata'),
        ('dup', 'dup', 'metadata'),
        ('close', 'close', 'metadata'),
        ('read', 'read', 'read'),
        ('pread', 'read', 'read'),
        ('readv', 'read', 'read'),
        ('preadv', 'read', 'read'),
        ('aio_read_done', 'read', 'read'),
        ('write', 'write', 'write'),
        ('pwrite', 'write', 'write'),
        ('writev', 'write', 'write'),
        ('pwritev', 'write', 'write'),
        ('aio_write_done', 'write', 'write'),
        ('lseek', 'seek', 'metadata'),
        ('stat', 'stat', 'metadata'),
        ('fstat', 'stat', 'metadata'),
        ('lstat', 'stat', 'metadata'),
        ('fsync', 'sync', 'write'),
        ('fdatasync', 'datasync', 'write'),
        ('mmap', 'mmap', NULL),
        ('fopen', 'open', 'metadata'),
        ('freopen', 'open', 'metadata'),
        ('fdopen', 'fdopen', 'metadata'),
        ('fclose', 'close', 'metadata'),
        ('fread', 'read', 'read'),
        ('fwrite', 'write', 'write'),
        ('fseek', 'seek', 'metadata'),
        ('fflush', 'flush', 'write')
)
SELECT
    o.op_number,
    o.layer,
    k.kind,
    CAST(list_position($kinds, k.kind) AS UTINYINT) AS kind_number,
    CAST(coalesce(list_position($timers, k.timer), 0) AS UTINYINT) AS timer_number
FROM kinds AS k
JOIN ops AS o ON o.op = k.op
