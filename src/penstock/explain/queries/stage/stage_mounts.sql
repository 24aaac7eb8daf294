-- stage_mounts: mount points, noted at the begin of the recording or measured since, of the files to stage: data files
-- that were read, never written and not served from a copy.
--   files, time_s  number of the files to stage, and the time in calls on the files
--   read_bps    the highest rate measured with cold files, or on tmpfs or ramfs; NULL: not measured
WITH mounts AS (
    SELECT split_part(value, chr(9), 1) AS mount FROM notes WHERE key = 'mount'
    UNION
    SELECT mount FROM ceilings
),
mapped AS (
    SELECT c.file
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE o.op = 'mmap' AND c.file IS NOT NULL
),
folders AS (
    SELECT
        regexp_replace(t.path, '/[^/]*$', '') AS folder,
        count(DISTINCT t.file) AS files,
        sum(t.time_s) AS time_s
    FROM file_totals AS t
    JOIN files AS f ON f.file = t.file
    WHERE t.path_class = 'data' AND t.kind = 'regular' AND t.path IS NOT NULL
        AND t.layer IN ('posix', 'stdio') AND t.written_bytes = 0 AND f.served_from IS NULL
        AND (t.read_bytes > 0 OR t.file IN (SELECT file FROM mapped))
    GROUP BY folder
),
placed AS (
    SELECT f.*, m.mount
    FROM folders AS f
    LEFT JOIN mounts AS m
        ON m.mount = '/' OR f.folder = m.mount OR starts_with(f.folder, m.mount || '/')
    QUALIFY row_number() OVER (PARTITION BY f.folder ORDER BY length(m.mount) DESC) = 1
),
limits AS (
    SELECT mount, max(bandwidth_bps) AS read_bps
    FROM ceilings
    WHERE op = 'read' AND (is_cold OR kind IN ('tmpfs', 'ramfs'))
    GROUP BY mount
)
SELECT
    p.mount,
    CAST(sum(p.files) AS BIGINT) AS files,
    sum(p.time_s) AS time_s,
    any_value(l.read_bps) AS read_bps
FROM placed AS p
LEFT JOIN limits AS l ON l.mount = p.mount
GROUP BY p.mount
ORDER BY sum(p.time_s) DESC, p.mount
