-- Blocking reads: reads of data files, and of files made by the job, that blocked the step loop.  Seconds are
-- means over main processes; where main processes wait for each other, the stalls of the slowest process
-- count for all (see shares).  Of stdio reads only delayed reads count: the stream's buffer served the others.
--   calls, read_bytes  number of blocking reads that moved bytes, and bytes moved; a read during two waits
--             counts twice
--   files     number of files read by `calls`
--   blocking_s  time for which blocking reads blocked the step loop
--   empty_s   part of blocking_s in empty reads: no bytes moved, at the end of a file
--   small_s   part of blocking_s in reads of less than 256 KiB, without empty reads
--   small_calls  number of `calls` of less than 256 KiB
--   slow_calls  number of small_calls delayed for longer than a read from memory takes (10 µs, and copying
--             at 10 GB/s)
--   small_all_s  as small_s, but the sum over all processes, without the weights of shares
--   tail_s    time beyond the median, in reads delayed for more than ten times the median of reads of similar
--             size (like_reads); only for sizes with 20 or more known reads, of which at most a tenth
--             took so long
--   tail_bytes, tail_p50_s, tail_p99_s  the octave of sizes with most of tail_s: lower bound (2^n bytes),
--             median and 99th percentile; NULL: tail_s is 0
--   reads, p50_s, p99_s  number, median and 99th percentile of all POSIX reads of data files and of files made
--             by the job, blocking or not, without empty reads
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
