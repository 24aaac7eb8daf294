-- The folder of the files of a beginning, by part (see startup_parts): the deepest folder that holds 80 % of
-- the part's time in calls (for a cache: 80 % of the bytes written).  Sums over main processes.
--   files  number of regular files in the folder; calls, read_bytes, written_bytes, time_s  of the folder
WITH by_file AS (
    SELECT part, file, sum(calls) AS calls, sum(read_bytes) AS read_bytes,
        sum(written_bytes) AS written_bytes, sum(ns) AS ns, sum(ns) AS weight
    FROM beginning_calls
    WHERE part <> 'import'
    GROUP BY part, file
    UNION ALL
    SELECT 'cache', file, 0, 0, sum(bytes), sum(to_ns - from_ns), sum(bytes)
    FROM caches
    GROUP BY file
),
placed AS (
    SELECT
        b.*,
        f.kind = 'regular' AS is_regular,
        CASE WHEN f.kind = 'directory' THEN f.path ELSE regexp_replace(f.path, '/[^/]*$', '') END AS folder
    FROM by_file AS b
    JOIN files AS f ON f.file = b.file
    WHERE f.path IS NOT NULL AND starts_with(f.path, '/')
),
by_folder AS (
    SELECT
        part,
        folder,
        string_split(folder, '/') AS names,
        sum(calls) AS calls,
        sum(read_bytes) AS read_bytes,
        sum(written_bytes) AS written_bytes,
        count(*) FILTER (WHERE is_regular) AS files,
        sum(ns) AS ns,
        sum(weight) AS weight
    FROM placed
    GROUP BY part, folder
),
above AS (
    SELECT
        part,
        n,
        array_to_string(list_slice(names, 1, n), '/') AS path,
        sum(calls) AS calls,
        sum(read_bytes) AS read_bytes,
        sum(written_bytes) AS written_bytes,
        sum(files) AS files,
        sum(ns) AS ns,
        sum(weight) AS weight
    FROM (SELECT *, unnest(range(1, array_length(names) + 1)) AS n FROM by_folder)
    GROUP BY part, n, 3
),
chosen AS (
    SELECT a.*
    FROM above AS a
    JOIN (SELECT part, sum(weight) AS weight FROM by_folder GROUP BY part) AS t ON t.part = a.part
    WHERE a.weight >= 0.8 * t.weight
    QUALIFY row_number() OVER (PARTITION BY a.part ORDER BY a.n DESC, a.weight DESC, a.path) = 1
)
SELECT
    part,
    coalesce(nullif(path, ''), '/') AS path,
    CAST(files AS BIGINT) AS files,
    CAST(calls AS BIGINT) AS calls,
    CAST(read_bytes AS BIGINT) AS read_bytes,
    CAST(written_bytes AS BIGINT) AS written_bytes,
    ns / 1e9 AS time_s
FROM chosen
WHERE ns >= 1000000  -- less than 1 ms is not worth a row
ORDER BY time_s DESC, part
