-- Idle time of the accelerators during data waits of the step loop, between the first step and the last.
-- NVML reports the busy share of the time before a sample, but not the busy moments.  So each stretch between
-- two samples gives only bounds: the data wait may fall into idle time or into busy time.
--   accelerators  number of accelerators with busy time; if none was busy, number of all accelerators
--   is_alone      processes were seen computing on an accelerator, at no time more than the run has main processes;
--                 NULL: not sampled
--   covered_s     time between samples, within the steps
--   idle_s        idle time in covered_s, in each stretch of the accelerator with the most idle time
--   wait_s        data wait in covered_s, a mean over main processes
--   idle_least_s, idle_most_s  data wait with idle accelerators, lower bound (in each stretch from the
--                 accelerator with the most busy time) and upper bound (from the accelerator with the most
--                 idle time); NULL: not sampled, or a run of several hosts
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
-- A stretch partly within the steps is clipped to the steps.  Busy and idle times are not clipped: the
-- accelerator may have worked inside or outside the clipped part.
used AS (
    SELECT
        s.device,
        greatest(s.from_ns, p.first_ns) AS from_ns,
        least(s.at_ns, p.last_ns) AS at_ns,
        s.busy * (s.at_ns - s.from_ns) AS busy_ns,
        (1 - s.busy) * (s.at_ns - s.from_ns) AS idle_ns
    FROM seen AS s
    CROSS JOIN span AS p
    WHERE s.from_ns < p.last_ns AND s.at_ns > p.first_ns
        AND (s.most > 0 OR (SELECT max(most) FROM seen) = 0)
),
between_samples AS (
    SELECT
        from_ns,
        at_ns,
        at_ns - from_ns AS ns,
        greatest(0, at_ns - from_ns - max(busy_ns)) AS idle_least_ns,
        least(at_ns - from_ns, max(idle_ns)) AS idle_most_ns
    FROM used
    WHERE at_ns > from_ns
    GROUP BY from_ns, at_ns
),
-- before_ns: time that a main process had waited before the start of each wait; between two waits the sum
-- does not grow.
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
        b.idle_least_ns,
        b.idle_most_ns,
        (coalesce(t.waited_ns, 0) - coalesce(f.waited_ns, 0)) / (SELECT mains FROM span) AS wait_ns
    FROM between_samples AS b
    LEFT JOIN waited AS f ON f.ns = b.from_ns
    LEFT JOIN waited AS t ON t.ns = b.at_ns
),
beside AS (
    SELECT max(o.value) AS processes
    FROM system AS o
    CROSS JOIN span AS p
    WHERE o.kind = 'accelerator' AND o.quantity = 'processes'
        AND o.at_ns BETWEEN p.first_ns AND p.last_ns
        AND o.device IN (SELECT device FROM used)
)
SELECT
    (SELECT count(DISTINCT device) FROM used) AS accelerators,
    (SELECT processes FROM beside) BETWEEN 1 AND (SELECT mains FROM span) AS is_alone,
    coalesce(sum(ns), 0) / 1e9 AS covered_s,
    sum(idle_most_ns) / 1e9 AS idle_s,
    coalesce(sum(wait_ns), 0) / 1e9 AS wait_s,
    sum(greatest(0, idle_least_ns + wait_ns - ns)) / 1e9 AS idle_least_s,
    sum(least(idle_most_ns, wait_ns)) / 1e9 AS idle_most_s
FROM stretched
