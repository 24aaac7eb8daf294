-- File systems that hold data and output files, by moved bytes (the first 50).  A file opened as a staged copy counts
-- on the tier's file system.
--   mount, kind  mount point and type, as noted at the start of the recording, else as noted when the file system
--               was measured; NULL: neither
--   files, size_bytes  number of regular files on the file system, and the sum of the file sizes
--   read_bytes, written_bytes  bytes moved through POSIX or STDIO: for each file, the layer that moved more
--   beneath     facts about the device: queue, striping, limits; for NFS, the requests to the server
--   read_ceiling_bps, write_ceiling_bps  the highest measured rate; NULL: not measured
WITH mounts AS (
    SELECT DISTINCT
        split_part(value, chr(9), 1) AS mount,
        split_part(value, chr(9), 2) AS kind,
        true AS is_noted
    FROM notes
    WHERE key = 'mount'
    UNION
    SELECT mount, kind, false FROM ceilings
),
served AS (
    SELECT mount, quantity, sum(value) AS value
    FROM (
        SELECT device AS mount, quantity, arg_max(value, at_ns) - arg_min(value, at_ns) AS value
        FROM system
        WHERE kind = 'nfs'
        GROUP BY host, device, quantity
    )
    GROUP BY mount, quantity
),
asked AS (
    SELECT
        mount,
        printf(
            'the server gave %,d MB in %,d reads of %.1f ms, %,d requests were sent again',
            (max(value) FILTER (WHERE quantity = 'read_bytes') / 1e6)::BIGINT,
            (max(value) FILTER (WHERE quantity = 'reads'))::BIGINT,
            coalesce(max(value) FILTER (WHERE quantity = 'reads_ms')
                / nullif(max(value) FILTER (WHERE quantity = 'reads'), 0), 0),
            (max(value) FILTER (WHERE quantity = 'sent_again'))::BIGINT
        ) AS words
    FROM served
    GROUP BY mount
),
under AS (
    SELECT mount, string_agg(words, '; ' ORDER BY words) AS beneath
    FROM (
        SELECT DISTINCT split_part(value, chr(9), 1) AS mount, split_part(value, chr(9), 2) AS words
        FROM notes
        WHERE key = 'beneath'
        UNION
        SELECT mount, words FROM asked
    )
    GROUP BY mount
),
limits AS (
    SELECT
        mount,
        max(bandwidth_bps) FILTER (WHERE op = 'read') AS read_bps,
        max(bandwidth_bps) FILTER (WHERE op = 'write') AS write_bps
    FROM ceilings
    WHERE is_cold OR kind IN ('tmpfs', 'ramfs')
    GROUP BY mount
),
totals AS (
    SELECT
        t.file,
        any_value(CASE WHEN f.served_from IS NOT NULL THEN f.resolved_path ELSE t.path END) AS path,
        any_value(t.path_class) AS path_class,
        max(t.size_bytes) AS size_bytes,
        max(t.read_bytes) AS read_bytes,
        max(t.written_bytes) AS written_bytes
    FROM file_totals AS t
    LEFT JOIN files AS f ON f.file = t.file
    WHERE t.path_class IN ('data', 'output') AND t.kind = 'regular' AND t.path IS NOT NULL
    GROUP BY t.file
),
folders AS (
    SELECT DISTINCT regexp_replace(path, '/[^/]*$', '') AS folder FROM totals
),
placed AS (
    SELECT f.folder, m.mount, m.kind
    FROM folders AS f
    LEFT JOIN mounts AS m
        ON m.mount = '/' OR f.folder = m.mount OR starts_with(f.folder, m.mount || '/')
    QUALIFY row_number() OVER (
        PARTITION BY f.folder ORDER BY length(m.mount) DESC, m.is_noted DESC, m.kind
    ) = 1
)
SELECT
    p.mount,
    p.kind,
    t.path_class,
    count(*) AS files,
    CAST(coalesce(sum(t.size_bytes), 0) AS BIGINT) AS size_bytes,
    CAST(coalesce(sum(t.read_bytes), 0) AS BIGINT) AS read_bytes,
    CAST(coalesce(sum(t.written_bytes), 0) AS BIGINT) AS written_bytes,
    any_value(l.read_bps) AS read_ceiling_bps,
    any_value(l.write_bps) AS write_ceiling_bps,
    any_value(u.beneath) AS beneath
FROM totals AS t
JOIN placed AS p ON p.folder = regexp_replace(t.path, '/[^/]*$', '')
LEFT JOIN limits AS l ON l.mount = p.mount
LEFT JOIN under AS u ON u.mount = p.mount
GROUP BY p.mount, p.kind, t.path_class
ORDER BY sum(t.read_bytes + t.written_bytes) DESC, p.mount, t.path_class
LIMIT 50
