-- shares: the weight of a data wait of the training stretch, a blocking checkpoint or a row of own_calls in the time
-- of the job, as a multiple of the weight in the mean over main processes.
--   share  1: main processes do not wait for each other, or waiting for each other is not known.  Where main processes
--          wait for each other, all wait for the process that is delayed longest in a bin of steps: the stalls of the
--          longest delayed process count for all processes, and the stalls of the other processes do not count.  Where
--          processes wait for each other in groups only, the rule holds within each group (see teams)
--   most   share if all met in every step; 1 where processes are known not to meet, or with a single process
WITH counted AS (
    SELECT generation, count(*) AS mains
    FROM teams
    WHERE process IN (SELECT process FROM step_stretches)
    GROUP BY generation
),
sizes AS (
    SELECT CAST(1 AS BIGINT) AS size, CAST(0 AS BIGINT) AS shift, false AS is_share
    FROM coupling
    WHERE how IN ('together', 'groups', 'not known')
    UNION ALL
    SELECT size, shift, true FROM coupling WHERE how IN ('together', 'groups')
),
of_each AS (
    SELECT
        z.is_share,
        s.generation,
        (s.step + z.size - 2 - z.shift) // z.size AS bin,
        s.process,
        sum(s.ns) AS ns
    FROM step_stalls AS s
    CROSS JOIN sizes AS z
    GROUP BY z.is_share, s.generation, (s.step + z.size - 2 - z.shift) // z.size, s.process
),
longest AS (
    SELECT is_share, generation, bin, process
    FROM of_each
    QUALIFY row_number() OVER (PARTITION BY is_share, generation, bin ORDER BY ns DESC, process) = 1
),
weighed AS (
    SELECT
        s.wait_id,
        s.save_id,
        s.calls_id,
        z.is_share,
        CASE WHEN l.process = s.process THEN c.mains ELSE 0 END AS share
    FROM step_stalls AS s
    CROSS JOIN sizes AS z
    JOIN counted AS c ON c.generation = s.generation
    JOIN longest AS l
        ON l.is_share = z.is_share AND l.generation = s.generation
            AND l.bin = (s.step + z.size - 2 - z.shift) // z.size
)
SELECT
    wait_id,
    save_id,
    calls_id,
    CAST(coalesce(max(share) FILTER (WHERE is_share), 1) AS DOUBLE) AS share,
    CAST(coalesce(max(share) FILTER (WHERE NOT is_share), 1) AS DOUBLE) AS most
FROM weighed
GROUP BY wait_id, save_id, calls_id
