-- step_bins: steps of all main processes side by side, in bins of 1, 4, 16, ... steps, to tell whether
-- processes wait for each other (see coupling).  The first step has a bin of its own, 0: it does not begin at
-- the end of a step.  All values add up, or are the greatest or the least of all; at most 4,096 bins of a size.
--   mains     main processes that took a step in the bin; whole: those that took all of its steps
--   d_us, hi, lo  of the whole processes: the time of the steps in us, and the sum of the squares,
--             hi * 2^32 + lo
--   stall_ns, most_ns, least_ns  data waits and blocking checkpoints of all in the bin: the sum, the
--             longest of one process, and the shortest of one that took all steps
WITH taken AS (
    SELECT
        e.process,
        g.generation,
        e.step,
        -- The last step lasts until the end of a following save.
        e.step > 1 AND e.step < max(e.step) OVER (PARTITION BY e.process) AS is_between,
        greatest(0, e.to_ns - e.from_ns) AS ns,
        e.wait_ns + e.save_ns AS stall_ns
    FROM step_stretches AS e
    JOIN generations AS g ON g.process = e.process
),
sized AS (
    SELECT *, unnest([1, 4, 16, 64, 256, 1024]) AS size
    FROM taken
),
of_each AS (
    SELECT
        generation,
        size,
        (step + size - 2) // size AS bin,
        process,
        -- The square of more us would not fit.
        count(*) FILTER (WHERE is_between) = size AND sum(ns) < 3000000000000 AS is_whole,
        CAST(sum(ns) // 1000 AS BIGINT) AS us,
        CAST(sum(stall_ns) AS BIGINT) AS stall_ns
    FROM sized
    WHERE (step + size - 2) // size <= 4096
    GROUP BY generation, size, (step + size - 2) // size, process
)
SELECT
    generation,
    size,
    bin,
    count(*) AS mains,
    count(*) FILTER (WHERE is_whole) AS whole,
    CAST(sum(us) FILTER (WHERE is_whole) AS BIGINT) AS d_us,
    CAST(sum(us * us // 4294967296) FILTER (WHERE is_whole) AS BIGINT) AS hi,
    CAST(sum(us * us % 4294967296) FILTER (WHERE is_whole) AS BIGINT) AS lo,
    CAST(sum(stall_ns) AS BIGINT) AS stall_ns,
    CAST(max(stall_ns) AS BIGINT) AS most_ns,
    CAST(min(stall_ns) FILTER (WHERE is_whole) AS BIGINT) AS least_ns
FROM of_each
GROUP BY generation, size, bin
