-- coupling_by_steps: whether main processes wait for each other in their steps (gradients, barriers), judged
-- by the ends of the steps; a single row.
--   how    one: fewer than two processes take steps; together: processes wait for each other, every `size`
--          steps or more often; apart: processes do not wait; not known: neither is shown
--   size   number of steps after which the processes have met; NULL: not together
--   steps  compared steps
-- Where processes do not wait for each other, the differences of their step times add up: over four times
-- as many steps the variance of the time is four times as large.  Where processes meet, the variance grows
-- more slowly, because an early process waits.  `ratio` is the variance of 4 * size steps, divided by four
-- times the variance of `size` steps.  A ratio under the 0.001 quantile of
-- the chi-squared distribution, divided by the degrees of freedom (Wilson and Hilferty's approximation), is not
-- due to chance.
-- Processes may keep pace for another reason, for example loaders with a shared rate.  Sign of another reason:
-- all processes wait (the least wait is more than a fifth of the most), and a step is not longer where a process
-- waits longer (the step grows by at most half of the wait, or by at most three times the error).
-- If a process waits, another process hardly waits, and both still keep pace to a twentieth of the wait,
-- the processes are together, too.  Processes are apart if the times differ as in a random walk over the
-- whole run.
WITH usual AS (
    SELECT generation, max(whole) AS mains FROM step_bins WHERE size = 1 GROUP BY generation
),
bins AS (
    SELECT
        b.size,
        b.generation,
        b.whole AS n,
        CAST(b.d_us AS DOUBLE) / b.whole AS d,
        greatest(0, (CAST(b.hi AS DOUBLE) - CAST(b.d_us AS DOUBLE) * b.d_us / b.whole / 4294967296.0)
            * 4294967296.0 + b.lo) AS ss,
        b.most_ns / 1e3 AS most,
        b.least_ns / 1e3 AS least
    FROM step_bins AS b
    JOIN usual AS u ON u.generation = b.generation
    WHERE b.whole >= 2 AND 2 * b.whole >= u.mains
),
sums AS (
    SELECT
        size,
        count(*) AS bins,
        sum(n - 1) AS freedom,
        sum(ss) / sum(n - 1) AS variance,
        sum(most) AS most,
        sum(least) AS least,
        sum(d * d) - sum(d) * sum(d) / count(*) AS dd,
        sum(d * most) - sum(d) * sum(most) / count(*) AS dm,
        sum(most * most) - sum(most) * sum(most) / count(*) AS mm
    FROM bins
    GROUP BY size
),
compared AS (
    SELECT
        s.size,
        f.freedom,
        f.variance / nullif(4 * s.variance, 0) AS ratio,
        power(greatest(0, 1 - 2.0 / 9 / f.freedom - 3.09 * sqrt(2.0 / 9 / f.freedom)), 3) AS limit_of_chance,
        s.least <= 0.2 * s.most
            OR (s.mm > 0 AND s.bins > 10 AND s.dm / s.mm > 0.5
                AND s.dm / s.mm > 3 * sqrt(greatest(0, s.dd - s.dm * s.dm / s.mm) / (s.bins - 2) / s.mm))
            AS is_theirs
    FROM sums AS s
    JOIN sums AS f ON f.size = 4 * s.size
),
-- The largest bins: how far processes are apart after the largest number of steps compared.
whole AS (
    SELECT
        l.size,
        l.size * l.bins AS steps,
        l.variance / nullif(l.size * s.variance, 0) AS ratio,
        l.least <= 0.2 * l.most AND sqrt(l.variance) <= (l.most - l.least) / l.bins / 40 AS keeps_pace
    FROM sums AS l
    CROSS JOIN (SELECT variance FROM sums WHERE size = 1) AS s
    WHERE l.size = (SELECT max(size) FROM sums)
),
met AS (
    SELECT min(size) AS size FROM compared WHERE ratio < limit_of_chance AND is_theirs
)
SELECT
    CAST(coalesce((SELECT max(mains) FROM usual), 0) AS BIGINT) AS mains,
    CAST(coalesce((SELECT bins FROM sums WHERE size = 1), 0) AS BIGINT) AS steps,
    CASE
        WHEN coalesce((SELECT max(mains) FROM usual), 0) < 2 THEN 'one'
        WHEN m.size IS NOT NULL OR (w.keeps_pace AND w.steps >= 8) THEN 'together'
        WHEN w.ratio >= 0.5 AND w.size >= 16 THEN 'apart'
        ELSE 'not known'
    END AS how,
    CAST(CASE WHEN m.size IS NOT NULL THEN m.size WHEN w.keeps_pace AND w.steps >= 8 THEN 1 END AS BIGINT) AS size
FROM met AS m
LEFT JOIN whole AS w ON true
