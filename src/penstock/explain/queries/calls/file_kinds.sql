-- file_kinds: the files that are not plain data: of another class, or no files at all (calls on a pipe,
-- a socket or a terminal wait for others, not for storage).  Data files are left out because there may
-- be a hundred times as many, and each call looks its file up here.  Shared memory that frameworks use
-- among themselves (of class system) is no storage either.
SELECT
    file,
    path_class,
    kind NOT IN ('pipe', 'socket', 'terminal')
        AND NOT (path_class = 'system' AND (starts_with(path, '/dev/shm') OR starts_with(path, '/memfd:')))
        AS is_file
FROM files
WHERE path_class <> 'data' OR kind IN ('pipe', 'socket', 'terminal')
