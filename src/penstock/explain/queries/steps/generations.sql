-- generations: the number of each main process among the main processes of the same rank, from 1: a job started
-- again in the same folder has several.  Processes without a rank have number 1.
SELECT
    m.process,
    row_number() OVER (
        PARTITION BY coalesce(p.rank, -1 - m.process) ORDER BY m.first_ns, m.process
    ) AS generation
FROM mains AS m
JOIN processes AS p ON p.process = m.process
