-- Data wait by rank and time: at most 64 rows of main processes in order of rank, in 120 equal bins of the run.  A row
-- for several ranks has the value of the rank that waited longest in the bin.
--   first, last  the first and the last rank of the row; for processes without a rank, the position in the order
--   bin, wait_s  number of the bin; seconds of data wait in the bin, the wait for the first batch included.  A row
--                without any wait has a single bin with wait_s 0
WITH extent AS (
    SELECT min(start_ns) AS start_ns, greatest(1, max(end_ns) - min(start_ns)) AS run_ns FROM lives
),
bins AS (
    SELECT start_ns, CAST(ceil((run_ns + 1) / 120) AS BIGINT) AS ns FROM extent
),
placed AS (
    SELECT
        m.process,
        coalesce(p.rank, -1) AS rank,
        row_number() OVER (ORDER BY p.rank, m.process) - 1 AS place,
        count(*) OVER () AS n
    FROM mains AS m
    JOIN processes AS p ON p.process = m.process
),
rows_of AS (
    SELECT *, place // CAST(ceil(n / 64) AS BIGINT) AS "row" FROM placed
),
named AS (
    SELECT "row",
        min(CASE WHEN rank < 0 THEN place ELSE rank END) AS "first",
        max(CASE WHEN rank < 0 THEN place ELSE rank END) AS "last"
    FROM rows_of GROUP BY "row"
),
pieces AS (
    SELECT
        w.process,
        greatest(0, w.start_ns - b.start_ns) AS from_ns,
        greatest(0, w.end_ns - b.start_ns) AS to_ns,
        b.ns
    FROM waits AS w
    CROSS JOIN bins AS b
),
spread AS (
    SELECT
        process,
        bin,
        sum(greatest(0, least(to_ns, (bin + 1) * ns) - greatest(from_ns, bin * ns))) AS wait_ns
    FROM (SELECT *, unnest(range(from_ns // ns, to_ns // ns + 1)) AS bin FROM pieces)
    GROUP BY process, bin
)
SELECT
    n."row",
    n."first",
    n."last",
    coalesce(w.bin, 0) AS bin,
    (SELECT ns FROM bins) / 1e9 AS bin_s,
    coalesce(w.wait_ns, 0) / 1e9 AS wait_s
FROM named AS n
LEFT JOIN (
    SELECT r."row", s.bin, max(s.wait_ns) AS wait_ns
    FROM spread AS s
    JOIN rows_of AS r ON r.process = s.process
    WHERE s.wait_ns > 0
    GROUP BY r."row", s.bin
) AS w ON w."row" = n."row"
ORDER BY n."row", 4
