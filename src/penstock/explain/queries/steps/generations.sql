-- generations: of the main processes with one rank the how many-th each is, from 1: a job that was started
-- again in the same folder.  Those without a rank are of the first.
SELECT
    m.process,
    row_number() OVER (
        PARTITION BY coalesce(p.rank, -1 - m.process) ORDER BY m.first_ns, m.process
    ) AS generation
FROM mains AS m
JOIN processes AS p ON p.process = m.process
