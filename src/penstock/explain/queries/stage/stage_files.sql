-- stage_files: a row for each data file that was read and never written, for the effect of a copy on
-- another tier.  Either POSIX or STDIO counts: the layer with more bytes read from the file.
--   opens, reads, read_bytes, time_s  as in file_totals; reads without empty reads
--   blocking_s    the part of time_s in which the step loop was blocked.  A mapped file adds a share, by bytes
--                 mapped, of the upper bound of the time blocked by page faults (page_faults).  Mean over main
--                 processes
--   open_s        time in opens of the file
--   is_asked      the run called stat or access on the path at most a minute before the first open: a client
--                 still has the file's attributes at the open
--   inode         st_ino when recorded: all names (links) of a file share the inode; 0: not known
--   served_from   the tier, if a tier's copy was read: device, inode and times are from the copy; NULL: the
--                 file itself was read
--   mapped_bytes  the longest mapping of the file; 0: read by calls
WITH mapped AS (
    SELECT c.file, max(c.asked_bytes) AS bytes, count(*) AS calls
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE o.op = 'mmap' AND c.file IS NOT NULL
    GROUP BY c.file
),
gets AS (
    SELECT c.file, o.layer, sum(c.calls) - coalesce(sum(c.empty), 0) AS reads
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE o.is_access AND o.op_group = 'read' AND c.file IS NOT NULL
    GROUP BY c.file, o.layer
),
opened AS (
    SELECT c.file, o.layer, sum(c.duration_ns) / 1e9 AS s
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    WHERE o.op IN ('open', 'fopen', 'freopen') AND c.file IS NOT NULL
    GROUP BY c.file, o.layer
),
asked AS (
    SELECT e.file
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE e.errno = 0 AND e.file IS NOT NULL
        AND o.op IN ('stat', 'lstat', 'access', 'open', 'fopen', 'freopen')
    GROUP BY e.file
    HAVING min(e.start_ns) FILTER (WHERE o.op IN ('open', 'fopen', 'freopen'))
        - min(e.start_ns) FILTER (WHERE o.op IN ('stat', 'lstat', 'access'))
        BETWEEN 0 AND 60000000000
),
chosen AS (
    SELECT t.*, coalesce(m.bytes, 0) AS mapped_bytes
    FROM file_totals AS t
    LEFT JOIN mapped AS m ON m.file = t.file
    WHERE t.path_class = 'data' AND t.kind = 'regular' AND t.path IS NOT NULL
        AND t.layer IN ('posix', 'stdio')
    QUALIFY max(t.written_bytes) OVER (PARTITION BY t.file) = 0
        AND row_number() OVER (PARTITION BY t.file ORDER BY t.read_bytes DESC, t.time_s DESC) = 1
),
faults AS (
    SELECT
        greatest(0, coalesce(sum(s.rest), 0)) AS ns
    FROM (
        SELECT f.blocked_ns AS rest
        FROM stretches AS s
        JOIN fits AS f ON f.stretch_id = s.stretch_id
        JOIN fetches AS h ON h.fetch_id = s.fetch_id
        WHERE s.kind = 'fetch' AND s.wait_id IS NOT NULL AND s.is_blocking
            AND EXISTS (
                SELECT 1 FROM spans AS p
                WHERE p.kind = 'span' AND p.name = 'fetch faults' AND p.process = h.process
                    AND p.thread = h.thread AND p.start_ns >= h.start_ns
                    AND p.start_ns <= h.end_ns + 1000000 AND p.b > 0
            )
    ) AS s
)
SELECT
    c.file,
    c.path,
    f.resolved_path,
    coalesce(f.device, 0) AS device,
    coalesce(f.inode, 0) AS inode,
    coalesce(c.size_bytes, 0) AS size_bytes,
    CAST(c.opens AS DOUBLE) AS opens,
    CAST(coalesce(g.reads, 0) AS DOUBLE) AS reads,
    CAST(c.read_bytes AS DOUBLE) AS read_bytes,
    c.time_s,
    (
        c.blocking_s + CASE
            WHEN c.mapped_bytes > 0 AND c.read_bytes < c.mapped_bytes
                THEN faults.ns / 1e9 * c.mapped_bytes / sum(
                    CASE WHEN c.mapped_bytes > 0 AND c.read_bytes < c.mapped_bytes THEN c.mapped_bytes END
                ) OVER ()
            ELSE 0
        END
    ) / greatest(1, (SELECT count(*) FROM mains)) AS blocking_s,
    CAST(c.mapped_bytes AS DOUBLE) AS mapped_bytes,
    CAST(coalesce(w.s, 0) AS DOUBLE) AS open_s,
    c.file IN (SELECT file FROM asked) AS is_asked,
    f.served_from
FROM chosen AS c
CROSS JOIN faults
LEFT JOIN files AS f ON f.file = c.file
LEFT JOIN gets AS g ON g.file = c.file AND g.layer = c.layer
LEFT JOIN opened AS w ON w.file = c.file AND w.layer = c.layer
WHERE c.read_bytes > 0 OR c.mapped_bytes > 0
ORDER BY c.file
