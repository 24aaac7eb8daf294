-- Reads of data files, and of files made by the job, that blocked the step loop, by kind.  Seconds are
-- means over main processes, or over the processes that delayed all (see shares).  Of stdio's reads only
-- the delayed reads count: the stream's buffer served the others.
--   calls, read_bytes  of the reads that moved bytes and were under way while the step loop was blocked; a
--             read in two waits counts twice
--   files     that these reads read
--   blocking_s  the time of these reads in which they blocked the step loop
--   empty_s   part of blocking_s in reads that moved nothing: at the end of a file
--   small_s   part of blocking_s in reads that moved less than 256 KiB, without empty reads
--   small_calls, slow_calls  reads (of calls) that moved less than 256 KiB; small reads delayed for longer
--             than a read from memory takes (10 µs, and copying at 10 GB/s)
--   small_all_s  as small_s, of all processes together
--   tail_s    of reads delayed for more than ten times the median of reads of like size (like_reads): the
--             time beyond the median; only of sizes with 20 or more known reads, of which at most a tenth
--             took so long
--   tail_bytes, tail_p50_s, tail_p99_s  of the octave of sizes with most of tail_s: its lower bound 2^n
--             bytes, median and 99th percentile; NULL: no octave has any
--   reads, p50_s, p99_s  of all such reads that moved bytes, blocking or not
WITH reads AS (
    SELECT
        b.*,
        CASE WHEN b.moved_bytes > 0 AND o.layer = 'posix' THEN floor(log2(b.moved_bytes)) END AS moved_bin,
        b.waited_ns >= 10000 + b.moved_bytes / 10 AS is_slow
    FROM blocking_calls AS b
    JOIN ops AS o ON o.op_number = b.op_number
    WHERE b.path_class IN ('data', 'output') AND o.op_group = 'read' AND o.is_access
        AND (o.layer = 'posix' OR (o.layer = 'stdio' AND b.waited_ns >= 10000 + b.moved_bytes / 10))
),
tails AS (
    SELECT r.moved_bin, any_value(l.p50_ns) AS p50_ns, any_value(l.p99_ns) AS p99_ns,
        coalesce(sum(greatest(0, r.ns - l.p50_ns) * r.held_ns / nullif(r.ns, 0)), 0) AS ns
    FROM reads AS r
    JOIN like_reads AS l ON l.moved_bin = r.moved_bin
    WHERE l.calls >= 20 AND l.p90_ns <= 10 * l.p50_ns AND r.waited_ns > 10 * l.p50_ns
    GROUP BY r.moved_bin
),
longest AS (
    SELECT moved_bin, p50_ns, p99_ns FROM tails WHERE ns > 0 ORDER BY ns DESC, moved_bin LIMIT 1
),
sums AS (
    SELECT
        count(*) FILTER (WHERE moved_bytes > 0) AS calls,
        sum(moved_bytes) AS bytes,
        count(DISTINCT file) FILTER (WHERE moved_bytes > 0) AS files,
        sum(held_ns) AS ns,
        sum(held_ns) FILTER (WHERE moved_bytes = 0) AS empty_ns,
        sum(held_ns) FILTER (WHERE moved_bytes BETWEEN 1 AND 262143) AS small_ns,
        sum(ns) FILTER (WHERE moved_bytes BETWEEN 1 AND 262143) AS small_all_ns,
        count(*) FILTER (WHERE moved_bytes BETWEEN 1 AND 262143) AS small_calls,
        count(*) FILTER (WHERE moved_bytes BETWEEN 1 AND 262143 AND is_slow) AS slow_calls,
        1e9 * greatest(1, (SELECT count(*) FROM mains)) AS per
    FROM reads
)
SELECT
    CAST(coalesce(s.calls, 0) AS BIGINT) AS calls,
    CAST(coalesce(s.bytes, 0) AS BIGINT) AS read_bytes,
    s.files,
    coalesce(s.ns, 0) / s.per AS blocking_s,
    coalesce(s.empty_ns, 0) / s.per AS empty_s,
    coalesce(s.small_ns, 0) / s.per AS small_s,
    s.small_calls,
    s.slow_calls,
    coalesce((SELECT sum(ns) FROM tails), 0) / s.per AS tail_s,
    CAST(2 ** (SELECT moved_bin FROM longest) AS BIGINT) AS tail_bytes,
    (SELECT p50_ns FROM longest) / 1e9 AS tail_p50_s,
    (SELECT p99_ns FROM longest) / 1e9 AS tail_p99_s,
    CAST(coalesce(q.calls, 0) AS BIGINT) AS reads,
    q.p50_ns / 1e9 AS p50_s,
    q.p99_ns / 1e9 AS p99_s,
    coalesce(s.small_all_ns, 0) / 1e9 AS small_all_s
FROM sums AS s
CROSS JOIN read_quantiles AS q
