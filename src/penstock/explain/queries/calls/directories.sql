-- The first 50 directories (a row per path class and layer), ordered by the time in which the step loop was
-- blocked, then by the time in calls.  A directory with more than 8 sub-directories of a single path class
-- stands for the whole tree (a folder of label folders is a single data set); folders counts the directories
-- of the tree.  all_directories: number of directories, whatever the layer.
WITH placed AS (
    SELECT
        *,
        CASE WHEN kind = 'directory' THEN path ELSE regexp_replace(path, '/[^/]*$', '') END AS folder
    FROM file_totals
    WHERE path IS NOT NULL
),
folders AS (
    SELECT DISTINCT path_class, folder, string_split(folder, '/') AS parts FROM placed
),
prefixes AS (
    SELECT
        path_class,
        folder,
        n,
        array_to_string(list_slice(parts, 1, n), '/') AS prefix,
        parts[n + 1] AS child
    FROM (SELECT *, unnest(range(2, array_length(parts) + 1)) AS n FROM folders)
),
wide AS (
    SELECT path_class, prefix, n FROM prefixes GROUP BY path_class, prefix, n HAVING count(DISTINCT child) > 8
),
heads AS (
    SELECT p.path_class, p.folder, min_by(p.prefix, p.n) AS directory
    FROM prefixes AS p
    JOIN wide AS w ON w.path_class = p.path_class AND w.prefix = p.prefix
    GROUP BY p.path_class, p.folder
),
totals AS (
    SELECT
        coalesce(nullif(coalesce(h.directory, p.folder), ''), '/') AS path,
        p.path_class,
        p.layer,
        count(DISTINCT p.folder) AS folders,
        count(DISTINCT p.path) FILTER (WHERE p.kind IS DISTINCT FROM 'directory') AS files,
        CAST(sum(p.calls) AS BIGINT) AS calls,
        CAST(sum(p.read_bytes) AS BIGINT) AS read_bytes,
        CAST(sum(p.written_bytes) AS BIGINT) AS written_bytes,
        sum(p.time_s) AS time_s,
        sum(p.blocking_s) AS blocking_s
    FROM placed AS p
    LEFT JOIN heads AS h ON h.path_class = p.path_class AND h.folder = p.folder
    GROUP BY 1, p.path_class, p.layer
)
SELECT *, (SELECT count(*) FROM (SELECT DISTINCT path, path_class FROM totals)) AS all_directories
FROM totals
ORDER BY blocking_s DESC, time_s DESC, path, layer
LIMIT 50
