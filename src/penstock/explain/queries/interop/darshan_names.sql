-- darshan_names: the files that a Darshan log can name, numbered from 0: regular files.  Files in the folders that
-- Darshan excludes by default (darshan_path_exclusions in darshan-config.c) are excluded, unless the files are
-- data or output of the job.  A path of unknown kind (looked at, but never opened) may be a folder: the path is
-- excluded if another path lies in the folder.  A file opened as a staged copy has the path of the copy.
WITH folders AS (
    SELECT DISTINCT regexp_replace(path, '/[^/]*$', '') AS path FROM files
)
SELECT f.file, CAST(row_number() OVER (ORDER BY f.file) - 1 AS INTEGER) AS number,
    CASE WHEN f.served_from IS NULL THEN f.path ELSE f.resolved_path END AS path
FROM files AS f
LEFT JOIN folders AS d ON d.path = f.path
WHERE starts_with(f.path, '/')
    AND (f.kind = 'regular' OR f.kind = 'unknown' AND d.path IS NULL)
    AND f.path_class <> 'system'
    AND (
        f.path_class <> 'library'
        OR NOT regexp_matches(f.path, '^/(etc|dev|usr|bin|boot|lib|opt|sbin|sys|proc|var)/')
    )
