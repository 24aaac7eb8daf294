-- met: a row per main process that takes steps, with the team of the process's exchanges (see meetings).
--   how    met: most exchanges were with a single team; none: hardly any exchanges; unclear: neither
--   team   the process that represents the team; without a team, the process itself
--   size   number of steps between the team's meetings; NULL: irregular
--   shift  the meeting's number of steps after the end of a bin of `size` steps, as in step_bins
WITH totals AS (
    SELECT e.process, count(*) AS steps, coalesce(max(x.n), 0) AS n
    FROM step_stretches AS e
    LEFT JOIN (SELECT process, count(*) AS n FROM meetings GROUP BY process) AS x ON x.process = e.process
    GROUP BY e.process
),
often AS (
    SELECT process, team, count(*) AS n
    FROM meetings
    WHERE team IS NOT NULL
    GROUP BY process, team
    QUALIFY row_number() OVER (PARTITION BY process ORDER BY count(*) DESC, team) = 1
),
judged AS (
    SELECT
        t.process,
        t.steps,
        t.n,
        CASE
            -- Eight meetings are unlikely by chance: all waits of the team must end at about one moment, eight times.
            WHEN o.n >= 8 AND o.n >= 0.6 * t.n THEN 'met'
            WHEN t.n <= 2 OR t.n < 0.02 * t.steps THEN 'none'
            ELSE 'unclear'
        END AS how,
        o.team
    FROM totals AS t
    LEFT JOIN often AS o ON o.process = t.process
),
-- The number of steps between a team's meetings is the mean number of steps per exchange of the team's processes.
rates AS (
    SELECT
        team,
        CASE WHEN sum(n) >= 0.6 * sum(steps) THEN 1 ELSE CAST(round(sum(steps) / sum(n)) AS BIGINT) END AS size
    FROM judged
    WHERE how = 'met'
    GROUP BY team
),
steps_of AS (
    SELECT DISTINCT j.team, m.step
    FROM judged AS j
    JOIN meetings AS m ON m.process = j.process AND m.team = j.team
    WHERE j.how = 'met'
),
residues AS (
    SELECT s.team, r.size, (s.step - 1) % r.size AS shift, count(*) AS n, sum(count(*)) OVER (PARTITION BY s.team) AS of_all
    FROM steps_of AS s
    JOIN rates AS r ON r.team = s.team
    GROUP BY s.team, r.size, (s.step - 1) % r.size
),
regular AS (
    SELECT team, size, shift
    FROM residues
    WHERE n >= 0.7 * of_all
)
SELECT
    j.process,
    j.how,
    CASE WHEN j.how = 'met' THEN j.team ELSE j.process END AS team,
    CAST(r.size AS BIGINT) AS size,
    CAST(r.shift AS BIGINT) AS shift
FROM judged AS j
LEFT JOIN regular AS r ON j.how = 'met' AND r.team = j.team
