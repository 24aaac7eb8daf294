-- Reads by the workers of IterableDatasets, if two or more workers serve an epoch: whether each worker reads
-- all the data.
--   workers      the most workers of an epoch;  passes: number of epochs read to the end
--   files, size_bytes  data files read by the workers, the job's own output files included, and the total size
--   read_bytes   bytes read from the files by all workers, in all epochs
--   whole_files, whole_bytes  number and size of the files read to 90 % or more by each worker of an epoch
WITH served AS (
    SELECT
        main,
        process,
        min(iterator) AS team,
        count(DISTINCT iterator) AS passes,
        count(*) FILTER (WHERE NOT has_batch) AS ends
    FROM fetches
    WHERE worker_ns IS NOT NULL
    GROUP BY main, process
),
-- Only teams in which every worker reached the end of the data at least once.
teams AS (
    SELECT main, team, count(*) AS workers, min(passes) AS passes
    FROM served
    GROUP BY main, team
    HAVING count(*) > 1 AND min(ends) > 0
),
moved AS (
    SELECT s.main, s.team, s.process, s.passes, c.file, o.layer, sum(c.moved_bytes) AS bytes
    FROM served AS s
    JOIN teams AS t ON t.main = s.main AND t.team = s.team
    JOIN calls AS c ON c.process = s.process
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE o.op_group = 'read' AND o.is_access
    GROUP BY s.main, s.team, s.process, s.passes, c.file, o.layer
    HAVING sum(c.moved_bytes) > 0
),
by_worker AS (
    SELECT main, team, process, file, max(bytes) AS bytes, max(bytes) / max(passes) AS pass_bytes
    FROM moved
    GROUP BY main, team, process, file
),
by_team AS (
    SELECT
        b.main,
        b.team,
        b.file,
        any_value(f.size_bytes) AS size_bytes,
        sum(b.bytes) AS bytes,
        count(*) FILTER (WHERE b.pass_bytes >= 0.9 * f.size_bytes) AS readers
    FROM by_worker AS b
    JOIN files AS f ON f.file = b.file
    WHERE f.path_class IN ('data', 'output') AND f.kind = 'regular' AND f.size_bytes > 0
    GROUP BY b.main, b.team, b.file
),
by_file AS (
    SELECT
        b.file,
        max(b.size_bytes) AS size_bytes,
        sum(b.bytes) AS bytes,
        bool_and(b.readers >= t.workers) AS is_whole
    FROM by_team AS b
    JOIN teams AS t ON t.main = b.main AND t.team = b.team
    GROUP BY b.file
)
SELECT
    (SELECT max(workers) FROM teams) AS workers,
    CAST((SELECT sum(passes) FROM teams) AS BIGINT) AS passes,
    count(*) AS files,
    CAST(coalesce(sum(size_bytes), 0) AS BIGINT) AS size_bytes,
    CAST(coalesce(sum(bytes), 0) AS BIGINT) AS read_bytes,
    count(*) FILTER (WHERE is_whole) AS whole_files,
    CAST(coalesce(sum(size_bytes) FILTER (WHERE is_whole), 0) AS BIGINT) AS whole_bytes
FROM by_file
