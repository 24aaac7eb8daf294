-- file_kinds: the files that are not plain data: of another class, or no files at all (calls on a pipe,
-- a socket or a terminal wait for others, not for storage).  Data files are left out because there may
-- be a hundred times as many, and each call looks its file up here.
SELECT file, path_class, kind NOT IN ('pipe', 'socket', 'terminal') AS is_file
FROM files
WHERE path_class <> 'data' OR kind IN ('pipe', 'socket', 'terminal')
