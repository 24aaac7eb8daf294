-- Filling a tier during the job (`penstock run --fill`): the time of reads during copying and during
-- pauses.  The copying pauses for the comparison.  Two rows; no row if nothing was filled.
--   filling       copying or paused
--   seconds       total length.  Copying counts in whole stretches, and may begin before the run's first
--                 process and end after the last process.  Pauses count only while a process of the run lived
--   copied_bytes  bytes copied; NULL in the pauses
--   reads         reads of data files, not served from a tier, begun during copying or during pauses
--   mean_read_s   mean time of the reads
--   slower        extra time of reads during copying, as a share of the time for equally many reads of
--                 similar length (within a factor of two) in the pauses: 0.02 is 2 %.  Repeated reads of an
--                 offset may come from memory, so repeated reads and first reads are compared separately.
--                 NULL in the pauses, and with fewer than 100 comparable reads during copying or in the pauses
--   slower_error  standard error of slower, from the spread within each read length
--   wait_share    share of the time in which the step loop waited for data, between the first data wait and
--                 the last; mean over main processes
--   is_cut        the filling was killed before the run's end, and the last actions are not recorded
WITH gets AS (
    SELECT
        e.start_ns,
        e.duration_ns / 1e9 AS s,
        floor(log2(greatest(1, e.moved_bytes))) AS size,
        row_number() OVER (PARTITION BY e.file, e.offset_bytes ORDER BY e.start_ns) > 1 AS is_again
    FROM events AS e
    JOIN files AS p ON p.file = e.file
    WHERE e.layer = 'posix' AND e.op_group = 'read' AND e.moved_bytes > 0
        AND p.path_class = 'data' AND p.kind = 'regular' AND p.served_from IS NULL
),
reads AS (
    SELECT f.is_copying, g.size, g.is_again, g.s
    FROM gets AS g
    ASOF JOIN fills AS f ON g.start_ns >= f.from_ns
    -- A copy in flight at the start of a pause still finishes: 4 MiB at 20 MB/s take 200 ms.
    WHERE g.start_ns >= f.from_ns + CASE WHEN f.is_copying THEN 0 ELSE 200000000 END
        AND g.start_ns < f.to_ns
),
sizes AS (
    SELECT
        size,
        is_again,
        count(*) FILTER (WHERE is_copying) AS n,
        avg(s) FILTER (WHERE is_copying) AS mean_s,
        var_samp(s) FILTER (WHERE is_copying) AS var,
        count(*) FILTER (WHERE NOT is_copying) AS n_paused,
        avg(s) FILTER (WHERE NOT is_copying) AS mean_paused_s,
        var_samp(s) FILTER (WHERE NOT is_copying) AS var_paused
    FROM reads
    GROUP BY size, is_again
    HAVING n >= 5 AND n_paused >= 5
),
compared AS (
    SELECT
        sum(n * mean_s) / sum(n * mean_paused_s) - 1 AS slower,
        sqrt(sum(n * n * (var / n + var_paused / n_paused))) / sum(n * mean_paused_s) AS error,
        sum(n) >= 100 AND sum(n_paused) >= 100 AS is_enough
    FROM sizes
),
training AS (
    SELECT min(start_ns) AS from_ns, max(end_ns) AS to_ns FROM waits WHERE in_wall
),
trained AS (
    SELECT
        f.is_copying,
        sum(greatest(0, least(t.to_ns, f.to_ns) - greatest(t.from_ns, f.from_ns))) AS ns
    FROM fills AS f
    CROSS JOIN training AS t
    GROUP BY f.is_copying
),
waited AS (
    SELECT
        f.is_copying,
        sum(greatest(0, least(w.end_ns, f.to_ns) - greatest(w.start_ns, f.from_ns))) AS ns
    FROM fills AS f
    JOIN waits AS w ON w.start_ns < f.to_ns AND w.end_ns > f.from_ns
    WHERE w.in_wall
    GROUP BY f.is_copying
),
life AS (
    -- A run with a process still running has no end: NULL.
    SELECT CASE WHEN count(*) = count(end_ns) THEN max(end_ns) END AS to_ns FROM processes
),
times AS (
    SELECT
        f.is_copying,
        sum(CASE WHEN f.is_copying THEN f.to_ns ELSE least(f.to_ns, coalesce(l.to_ns, f.to_ns)) END
            - f.from_ns) AS ns,
        CAST(sum(f.copied_bytes) AS BIGINT) AS copied_bytes
    FROM fills AS f
    CROSS JOIN life AS l
    WHERE f.from_ns < coalesce(l.to_ns, f.to_ns)
    GROUP BY f.is_copying
),
cut AS (
    SELECT coalesce(bool_or(f.is_cut) AND max(f.to_ns) < max(l.to_ns), FALSE) AS is_cut
    FROM fills AS f
    CROSS JOIN life AS l
),
counted AS (
    SELECT is_copying, count(*) AS reads, avg(s) AS mean_read_s FROM reads GROUP BY is_copying
)
SELECT
    CASE WHEN t.is_copying THEN 'copying' ELSE 'paused' END AS filling,
    t.ns / 1e9 AS seconds,
    CASE WHEN t.is_copying THEN t.copied_bytes END AS copied_bytes,
    CAST(coalesce(c.reads, 0) AS BIGINT) AS reads,
    c.mean_read_s,
    CASE WHEN t.is_copying AND d.is_enough THEN d.slower END AS slower,
    CASE WHEN t.is_copying AND d.is_enough THEN d.error END AS slower_error,
    w.ns / nullif(r.ns, 0) / (SELECT greatest(1, count(*)) FROM mains) AS wait_share,
    x.is_cut
FROM times AS t
CROSS JOIN compared AS d
CROSS JOIN cut AS x
LEFT JOIN counted AS c ON c.is_copying = t.is_copying
LEFT JOIN trained AS r ON r.is_copying = t.is_copying
LEFT JOIN waited AS w ON w.is_copying = t.is_copying
ORDER BY t.is_copying DESC
