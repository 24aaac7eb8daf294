-- generations: the number of each main process among the main processes of equal rank, from 1: a job restarted in
-- the same folder has several generations.  A process without a rank has number 1.
SELECT
    m.process,
    row_number() OVER (
        PARTITION BY coalesce(p.rank, -1 - m.process) ORDER BY m.first_ns, m.process
    ) AS generation
FROM mains AS m
JOIN processes AS p ON p.process = m.process
