-- Mapped files that `penstock run --ahead` read ahead of the program, or decided not to read.  A row for
-- each file and host; if there are no files, a single row without a path; no row for a run without --ahead.
--   path           NULL: no file was read ahead
--   access         how the program used the file: weights, in order, random; loader: a data loader
--                  sent the order; off: reading ahead was stopped, for the reason in `why`
--   ahead_bytes    bytes read into memory before the program touched the bytes
--   hit_bytes      the part of ahead_bytes touched by the program afterwards: a lower bound, as touches just
--                  before the end of a mapping are not seen
--   touched_bytes  all bytes seen touched by the program, in blocks of 64 KiB
--   size_bytes     size of the file
--   why            the reason why nothing was read, or why reading was stopped
WITH read_ahead AS (
    SELECT
        split_part(value, chr(9), 1) AS access,
        TRY_CAST(split_part(value, chr(9), 2) AS BIGINT) AS ahead_bytes,
        TRY_CAST(split_part(value, chr(9), 3) AS BIGINT) AS hit_bytes,
        TRY_CAST(split_part(value, chr(9), 4) AS BIGINT) AS touched_bytes,
        TRY_CAST(split_part(value, chr(9), 5) AS BIGINT) AS size_bytes,
        nullif(split_part(value, chr(9), 6), '') AS why,
        split_part(value, chr(9), 7) AS path
    FROM notes
    WHERE key = 'ahead file'
),
files_ahead AS (
    SELECT path, access, ahead_bytes, hit_bytes, touched_bytes, size_bytes, why
    FROM read_ahead
    WHERE ahead_bytes IS NOT NULL AND hit_bytes IS NOT NULL
        AND touched_bytes IS NOT NULL AND size_bytes IS NOT NULL
)
SELECT path, access, ahead_bytes, hit_bytes, touched_bytes, size_bytes, why
FROM files_ahead
UNION ALL
SELECT
    NULL, 'nothing read', 0, 0, 0, 0,
    CASE min(value) WHEN 'on' THEN 'no mapped file had to be read ahead' ELSE min(value) END
FROM notes
WHERE key = 'ahead' AND NOT EXISTS (SELECT 1 FROM files_ahead)
HAVING count(*) > 0
ORDER BY ahead_bytes DESC, path
