-- step_bins: steps of all main processes side by side, in bins of 1, 4, 16, ... steps.  The bins show whether
-- processes wait for each other (see coupling).  The first step has a bin of its own, 0, because the first step does
-- not begin at the end of a step.  Every value is a sum, a maximum or a minimum over processes, so bins of several
-- processes can be merged.  At most 4,096 bins of a size.
--   mains     number of main processes that took a step in the bin; whole: number of main processes that took all
--             steps of the bin
--   d_us, hi, lo  over the whole processes: the sum of the times of the steps in us; the sum of the squared times is
--             hi * 2^32 + lo
--   stall_ns, most_ns, least_ns  data waits and blocking checkpoints in the bin: the sum over all processes, the
--             maximum over all processes, and the minimum over the whole processes
WITH taken AS (
    SELECT
        e.process,
        g.generation,
        e.step,
        -- The last step is excluded, because the last step lasts until the end of a following save.
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
        -- The square of 3e9 us or more may overflow a BIGINT.
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
    -- CASE and not FILTER, which computes the square of each row first.
    CAST(sum(CASE WHEN is_whole THEN us * us // 4294967296 END) AS BIGINT) AS hi,
    CAST(sum(CASE WHEN is_whole THEN us * us % 4294967296 END) AS BIGINT) AS lo,
    CAST(sum(stall_ns) AS BIGINT) AS stall_ns,
    CAST(max(stall_ns) AS BIGINT) AS most_ns,
    CAST(min(stall_ns) FILTER (WHERE is_whole) AS BIGINT) AS least_ns
FROM of_each
GROUP BY generation, size, bin
