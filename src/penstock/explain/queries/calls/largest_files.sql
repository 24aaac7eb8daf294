-- A row per file and layer: the 100 rows that blocked the step loop longest (with equal blocking, the rows with more
-- time in calls), and a row per layer, without a path, for all other files.  A path opened both directly and as a
-- staged copy counts as a single file.
--   all_files   number of all files; a file with calls of both layers counts once
WITH named AS (
    SELECT
        path,
        layer,
        max(path_class) AS path_class,
        max(size_bytes) AS size_bytes,
        sum(opens) AS opens,
        sum(calls) AS calls,
        sum(read_bytes) AS read_bytes,
        sum(written_bytes) AS written_bytes,
        sum(read_times) AS read_times,
        sum(time_s) AS time_s,
        sum(blocking_s) AS blocking_s
    FROM file_totals
    WHERE path_class IN ('data', 'output') AND path IS NOT NULL
        AND (kind = 'regular' OR read_bytes + written_bytes > 0)
    GROUP BY path, layer
),
ordered AS (
    SELECT
        *,
        row_number() OVER (ORDER BY blocking_s DESC, time_s DESC, path, layer) AS place
    FROM named
)
SELECT
    CASE WHEN place <= 100 THEN path END AS path,
    CASE WHEN place <= 100 THEN path_class END AS path_class,
    layer,
    count(*) AS files,
    CAST(sum(size_bytes) AS BIGINT) AS size_bytes,
    CAST(sum(opens) AS BIGINT) AS opens,
    CAST(sum(calls) AS BIGINT) AS calls,
    CAST(sum(read_bytes) AS BIGINT) AS read_bytes,
    CAST(sum(written_bytes) AS BIGINT) AS written_bytes,
    CASE WHEN min(place) <= 100 THEN max(read_times) END AS read_times,
    sum(time_s) AS time_s,
    sum(blocking_s) AS blocking_s,
    (SELECT count(DISTINCT path) FROM ordered) AS all_files
FROM ordered
GROUP BY CASE WHEN place <= 100 THEN place END, CASE WHEN place <= 100 THEN path END,
    CASE WHEN place <= 100 THEN path_class END, layer
ORDER BY min(place) > 100, min(place)
