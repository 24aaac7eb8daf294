-- Reads of data files: regular files of class data from which at least a byte was read.
--   reads, empty_reads  number of reads, and of empty reads (no bytes moved, at the end of the file); NULL: an
--               imported run without the number of empty reads
--   opens       calls to open data files
--   metadata    calls on data files that moved no data: open, close, stat, seek ...
--   reread_files, reread_bytes  files of which more than 1.01 times the size was read, and the bytes beyond
--               the size
-- A file read through both layers counts with the layer that read more.  A file read from the original path and
-- from a staged copy is a single file.
WITH moved AS (
    SELECT
        any_value(path) AS path,
        file,
        max(size_bytes) AS size_bytes,
        max(read_bytes) AS read_bytes,
        max(read_times) AS read_times
    FROM file_totals
    WHERE path_class = 'data' AND kind = 'regular' AND read_bytes > 0
    GROUP BY file
),
data AS (
    SELECT
        max(size_bytes) AS size_bytes,
        sum(read_bytes) AS read_bytes,
        sum(read_times) AS read_times
    FROM moved
    GROUP BY coalesce(path, CAST(file AS VARCHAR))
),
files_read AS (
    SELECT
        count(*) AS files,
        coalesce(sum(size_bytes), 0) AS size_bytes,
        coalesce(sum(read_bytes), 0) AS read_bytes,
        count(*) FILTER (WHERE read_times > 1.01) AS reread_files,
        coalesce(sum(read_bytes - size_bytes) FILTER (WHERE read_times > 1.01), 0) AS reread_bytes,
        median(size_bytes) AS file_bytes_p50
    FROM data
),
counted AS (
    SELECT
        coalesce(sum(t.calls) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0) AS reads,
        CASE WHEN count(*) FILTER (WHERE t.empty IS NULL AND o.is_access AND o.op_group = 'read') = 0
            THEN coalesce(sum(t.empty) FILTER (WHERE o.is_access AND o.op_group = 'read'), 0)
        END AS empty_reads,
        coalesce(sum(t.calls) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen')), 0) AS opens
    FROM op_totals AS t
    JOIN ops AS o ON o.op_number = t.op_number
    WHERE t.path_class = 'data'
),
-- Folders and missing paths do not count, because imports look for folders and missing paths, too.
unmoved AS (
    SELECT coalesce(sum(c.calls), 0) AS metadata, coalesce(sum(c.duration_ns), 0) / 1e9 AS metadata_s
    FROM calls AS c
    JOIN files AS f ON f.file = c.file
    WHERE f.path_class = 'data' AND f.kind = 'regular'
        AND c.op_number IN (SELECT op_number FROM ops WHERE op_group = 'metadata')
)
SELECT
    f.files,
    CAST(f.size_bytes AS BIGINT) AS size_bytes,
    CAST(f.read_bytes AS BIGINT) AS read_bytes,
    CAST(c.reads AS BIGINT) AS reads,
    CAST(c.empty_reads AS BIGINT) AS empty_reads,
    CAST(c.opens AS BIGINT) AS opens,
    CAST(u.metadata AS BIGINT) AS metadata,
    u.metadata_s,
    f.reread_files,
    CAST(f.reread_bytes AS BIGINT) AS reread_bytes,
    f.file_bytes_p50
FROM files_read AS f
CROSS JOIN counted AS c
CROSS JOIN unmoved AS u
