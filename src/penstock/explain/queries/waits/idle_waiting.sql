-- What the accelerators did while the step loop waited for data, between the first step and the last.  A
-- sample tells for how much of the time before it they worked, not when: so of each stretch between two
-- samples it is known how much of the wait they were idle at least and at most.
--   accelerators  those that worked at all; where none did, all
--   wait_s        data wait in the stretches between samples, a mean over main processes
--   idle_least_s, idle_most_s  of it, with accelerators idle: a mean over them; NULL: not sampled, or on
--                 several hosts, whose samples are not told apart
WITH span AS (
    SELECT min(first_ns) AS first_ns, max(last_ns) AS last_ns, count(*) AS mains FROM mains
),
seen AS (
    SELECT
        device,
        at_ns,
        value AS busy,
        lag(at_ns) OVER (PARTITION BY device ORDER BY at_ns) AS from_ns,
        max(value) OVER (PARTITION BY device) AS most
    FROM system
    WHERE kind = 'accelerator' AND quantity = 'busy_share'
        AND (SELECT count(DISTINCT host) FROM processes) = 1
),
used AS (
    SELECT s.device, s.from_ns, s.at_ns, s.busy
    FROM seen AS s
    CROSS JOIN span AS p
    WHERE s.from_ns >= p.first_ns AND s.at_ns <= p.last_ns
        AND (s.most > 0 OR (SELECT max(most) FROM seen) = 0)
),
between_samples AS (
    SELECT from_ns, at_ns, at_ns - from_ns AS ns, (at_ns - from_ns) * (1 - avg(busy)) AS idle_ns
    FROM used
    WHERE at_ns > from_ns
    GROUP BY from_ns, at_ns
),
-- How long a main process had waited up to the beginning of each wait: between two waits it stays.
summed AS (
    SELECT
        process,
        start_ns,
        end_ns,
        sum(end_ns - start_ns) OVER (PARTITION BY process ORDER BY start_ns) - (end_ns - start_ns)
            AS before_ns
    FROM waits
    WHERE in_wall
),
moments AS (
    SELECT m.process, t.ns
    FROM (SELECT from_ns AS ns FROM between_samples UNION SELECT at_ns FROM between_samples) AS t
    CROSS JOIN mains AS m
),
waited AS (
    SELECT o.ns, sum(s.before_ns + least(o.ns, s.end_ns) - s.start_ns) AS waited_ns
    FROM moments AS o
    ASOF JOIN summed AS s ON s.process = o.process AND s.start_ns <= o.ns
    GROUP BY o.ns
),
stretched AS (
    SELECT
        b.ns,
        b.idle_ns,
        (coalesce(t.waited_ns, 0) - coalesce(f.waited_ns, 0)) / (SELECT mains FROM span) AS wait_ns
    FROM between_samples AS b
    LEFT JOIN waited AS f ON f.ns = b.from_ns
    LEFT JOIN waited AS t ON t.ns = b.at_ns
)
SELECT
    (SELECT count(DISTINCT device) FROM used) AS accelerators,
    coalesce(sum(wait_ns), 0) / 1e9 AS wait_s,
    sum(greatest(0, idle_ns + wait_ns - ns)) / 1e9 AS idle_least_s,
    sum(least(idle_ns, wait_ns)) / 1e9 AS idle_most_s
FROM stretched
