-- Data files by the number of ranks that read a file.
--   readers     number of ranks that read each file of the row; a rank includes the workers of the rank's loader
--   files, size_bytes  number of regular files, and the sum of file sizes
--   read_bytes  bytes of the files, read by all ranks; counted for each file and rank in the layer (POSIX or STDIO)
--               with more bytes
--   node_bytes  bytes to read if each host read shared data only once: for each file and host, the bytes of the rank
--               with the most bytes; a lower bound if ranks read different parts
-- A file that was read under the file's own path and as a staged copy has two file numbers and a single path: the
-- first number stands for both.
WITH named AS (
    SELECT
        file,
        min(file) OVER name AS first_file,
        max(size_bytes) OVER name AS size_bytes
    FROM files
    WHERE path_class = 'data' AND kind = 'regular'
    WINDOW name AS (PARTITION BY coalesce(path, CAST(file AS VARCHAR)))
),
moved AS (
    SELECT n.first_file AS file, p.rank, min(p.host) AS host, o.layer, sum(c.moved_bytes) AS bytes
    FROM calls AS c
    JOIN named AS n ON n.file = c.file
    JOIN ops AS o ON o.op_number = c.op_number
    JOIN processes AS p ON p.process = c.process
    WHERE o.op_group = 'read' AND o.is_access AND p.rank IS NOT NULL
        AND p.world_size = (SELECT max(world_size) FROM processes WHERE rank IS NOT NULL)
    GROUP BY n.first_file, p.rank, o.layer
    HAVING sum(c.moved_bytes) > 0
),
by_rank AS (
    SELECT file, rank, any_value(host) AS host, max(bytes) AS bytes FROM moved GROUP BY file, rank
),
by_host AS (
    SELECT file, host, max(bytes) AS bytes FROM by_rank GROUP BY file, host
),
by_file AS (
    SELECT file, count(*) AS readers, sum(bytes) AS bytes FROM by_rank GROUP BY file
),
hosts AS (
    SELECT file, sum(bytes) AS bytes FROM by_host GROUP BY file
)
SELECT
    b.readers,
    count(*) AS files,
    CAST(sum(f.size_bytes) AS BIGINT) AS size_bytes,
    CAST(sum(b.bytes) AS BIGINT) AS read_bytes,
    CAST(sum(h.bytes) AS BIGINT) AS node_bytes
FROM by_file AS b
JOIN named AS f ON f.file = b.file
JOIN hosts AS h ON h.file = b.file
GROUP BY b.readers
ORDER BY b.readers DESC
LIMIT 200
