-- coupling: whether main processes wait for each other in the steps, judged by the ends of the steps
-- (coupling_by_steps) and by the exchanges (met); a single row.
--   how    one, together, apart, not known: as in coupling_by_steps; groups: processes of a team wait for each
--          other, teams do not
--   size   steps after which the processes have met; NULL: not together
--   shift  the meeting's number of steps after the end of a bin of `size` steps, as in step_bins
--   steps  compared steps
-- If the step thread waits for an accelerator, ranks may meet in exchanges that are not recorded (NCCL): then
-- the ends of the steps show how often the ranks meet.  Recorded exchanges decide for the whole run if every
-- process meets all other processes of the same start of the job (generation).  Teams that do not meet are also
-- recognised, if the teams' steps drift apart.
WITH pairs AS (
    SELECT t.process, g.generation, t.how, t.team, t.size, t.shift
    FROM met AS t
    JOIN generations AS g ON g.process = t.process
),
found AS (
    SELECT
        count(*) AS n,
        count(*) FILTER (WHERE how = 'met' AND size IS NOT NULL) AS n_met,
        count(*) FILTER (WHERE how = 'unclear') AS n_unclear,
        count(DISTINCT team) AS teams,
        count(DISTINCT generation) AS generations,
        max(size) AS size
    FROM pairs
),
crossed AS (
    SELECT count(*) AS n FROM (SELECT DISTINCT generation, team FROM pairs)
),
unseen AS (
    SELECT count(*) AS n
    FROM standstills AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    WHERE s.what = 'accelerator'
),
turned AS (
    SELECT max(p.shift) AS shift FROM pairs AS p JOIN found AS f ON f.size = p.size
),
judged AS (
    SELECT
        b.mains,
        b.steps,
        b.size,
        CASE
            WHEN b.how = 'one' THEN 'one'
            WHEN b.how = 'together' AND u.n > 0 THEN 'together'
            WHEN f.n_met = f.n AND f.teams = c.n AND f.generations = c.n AND b.how <> 'apart' THEN 'exchange'
            WHEN b.how = 'apart' AND f.n_met > 0 AND f.n_unclear = 0
                AND NOT (f.teams = c.n AND f.generations = c.n) THEN 'groups'
            -- Some processes exchange, but the partners are not known.
            WHEN b.how = 'apart' AND f.n_met + f.n_unclear > 0 THEN 'not known'
            ELSE b.how
        END AS how,
        f.size AS exchange_size,
        a.shift
    FROM coupling_by_steps AS b
    CROSS JOIN found AS f
    CROSS JOIN crossed AS c
    CROSS JOIN turned AS a
    CROSS JOIN unseen AS u
)
SELECT
    mains,
    steps,
    CASE WHEN how = 'exchange' THEN 'together' ELSE how END AS how,
    CAST(CASE WHEN how IN ('exchange', 'groups') THEN exchange_size ELSE size END AS BIGINT) AS size,
    CAST(CASE WHEN how IN ('exchange', 'groups') THEN coalesce(shift, 0) ELSE 0 END AS BIGINT) AS shift
FROM judged
