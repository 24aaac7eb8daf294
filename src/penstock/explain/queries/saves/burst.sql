-- The burst buffer: the program's writes to the fast tier, and the files that the drain copied to the program's paths.
--   tier            folder of the tier; a single row if the run had a tier, else no row
--   files, written_bytes, time_s  number of files, bytes and time of the program's calls on the tier; counted for
--                   each file in the layer (POSIX or STDIO) with more bytes.  A path counts once; the bytes of a
--                   path count at each write
--   drained, drained_bytes  number and bytes of the files that the drain copied
--   durable_mean_s, durable_max_s  from the last write of a file until the file is at the program's path, synced
--   left_files, left_bytes, at_risk_s  files only on the fast tier at the end of the drain, and the age of
--                   the oldest file: the cost of a loss of the tier; NULL: the drain has not reported
--   paused_s        time in which the drain paused in favour of the training's data
WITH written AS (
    SELECT
        count(*) AS files,
        CAST(coalesce(sum(t.written_bytes), 0) AS BIGINT) AS written_bytes,
        coalesce(sum(t.time_s), 0) AS time_s
    FROM (
        SELECT file, max(written_bytes) AS written_bytes, arg_max(time_s, written_bytes) AS time_s
        FROM file_totals
        GROUP BY file
    ) AS t
    JOIN files AS f ON f.file = t.file
    WHERE f.served_from IN (SELECT value FROM notes WHERE key = 'burst tier')
),
drained AS (
    SELECT
        count(*) AS drained,
        CAST(coalesce(sum(CAST(split_part(value, ' ', 1) AS BIGINT)), 0) AS BIGINT) AS drained_bytes,
        avg(CAST(split_part(value, ' ', 2) AS DOUBLE)) AS durable_mean_s,
        max(CAST(split_part(value, ' ', 2) AS DOUBLE)) AS durable_max_s
    FROM notes
    WHERE key = 'drained'
),
ended AS (
    SELECT
        max(CAST(split_part(value, ' ', 1) AS BIGINT)) AS left_files,
        max(CAST(split_part(value, ' ', 2) AS BIGINT)) AS left_bytes,
        max(CAST(split_part(value, ' ', 3) AS DOUBLE)) AS at_risk_s
    FROM notes
    WHERE key = 'drain left'
),
paused AS (
    SELECT sum(CAST(value AS DOUBLE)) AS paused_s FROM notes WHERE key = 'drain paused'
)
SELECT
    (SELECT min(value) FROM notes WHERE key = 'burst tier') AS tier,
    w.files,
    w.written_bytes,
    w.time_s,
    d.drained,
    d.drained_bytes,
    d.durable_mean_s,
    d.durable_max_s,
    e.left_files,
    e.left_bytes,
    e.at_risk_s,
    p.paused_s
FROM written AS w
CROSS JOIN drained AS d
CROSS JOIN ended AS e
CROSS JOIN paused AS p
WHERE EXISTS (SELECT 1 FROM notes WHERE key = 'burst tier')
