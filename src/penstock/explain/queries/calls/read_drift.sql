-- Reads of data files over time: the wall time in at most 64 equal pieces.
--   waits_s   duration of the data waits begun in the piece, summed over main processes
--   steps     steps begun in the piece
--   reads, read_s, read_bytes  finished POSIX reads of data files; reads of 0 bytes are excluded
WITH extent AS (
    SELECT min(first_ns) AS from_ns, greatest(1, max(last_ns) - min(first_ns)) AS ns FROM mains
),
pieces AS (
    SELECT from_ns, CAST(ceil((ns + 1) / 64) AS BIGINT) AS ns FROM extent
),
reads AS (
    SELECT piece, sum(reads) AS reads, sum(ns) AS ns, sum(bytes) AS bytes
    FROM read_slots
    GROUP BY piece
),
waited AS (
    SELECT (w.start_ns - p.from_ns) // p.ns AS piece, sum(w.end_ns - w.start_ns) AS ns
    FROM waits AS w
    CROSS JOIN pieces AS p
    WHERE w.in_wall
    GROUP BY piece
),
stepped AS (
    SELECT (s.start_ns - p.from_ns) // p.ns AS piece, count(*) AS steps
    FROM steps AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    CROSS JOIN pieces AS p
    WHERE s.start_ns >= p.from_ns
    GROUP BY piece
)
SELECT
    (SELECT ns FROM pieces) / 1e9 AS piece_s,
    CAST(coalesce(s.steps, 0) AS BIGINT) AS steps,
    coalesce(w.ns, 0) / 1e9 AS waits_s,
    CAST(coalesce(r.reads, 0) AS BIGINT) AS reads,
    coalesce(r.ns, 0) / 1e9 AS read_s,
    CAST(coalesce(r.bytes, 0) AS BIGINT) AS read_bytes
FROM (SELECT unnest(range(64)) AS piece) AS i
LEFT JOIN reads AS r ON r.piece = i.piece
LEFT JOIN waited AS w ON w.piece = i.piece
LEFT JOIN stepped AS s ON s.piece = i.piece
WHERE EXISTS (SELECT 1 FROM mains)
ORDER BY i.piece
