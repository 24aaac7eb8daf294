-- The hosts' resources for the job, as noted at the start of the recording; NULL: not noted.
--   cpus          CPUs that the job may use, summed over hosts: the CPUs allowed for the main processes, or the
--                 quotas of the main processes' control groups, if lower.  If main processes noted no CPUs: the
--                 launcher's CPUs or quota
--   quota_cpus    CPUs allowed by the quotas; NULL: no quota, or a quota above the number of CPUs
--   throttled     number of periods in which a quota stopped the job; throttled_s: the time stopped, summed over
--                 the CPUs of a group; NULL: not known
--   memory_bytes  memory of the host, or of the job's control group, if lower
WITH told AS (
    SELECT
        p.host,
        TRY_CAST(split_part(n.value, chr(9), 1) AS BIGINT) AS cpus,
        split_part(n.value, chr(9), 2) AS mask,
        TRY_CAST(split_part(n.value, chr(9), 3) AS DOUBLE) AS quota,
        split_part(n.value, chr(9), 4) AS control_group
    FROM notes AS n
    JOIN processes AS p ON p.process = n.process
    WHERE n.key = 'cpus of process' AND n.process IN (SELECT process FROM mains)
),
allowed AS (  -- processes with equal masks share CPUs
    SELECT host, sum(cpus) AS cpus
    FROM (SELECT host, mask, max(cpus) AS cpus FROM told GROUP BY host, mask)
    GROUP BY host
),
quotas AS (
    SELECT host, sum(quota) AS cpus
    FROM (SELECT host, control_group, min(quota) AS quota FROM told GROUP BY host, control_group)
    GROUP BY host
    HAVING count(quota) = count(*)
),
of_mains AS (
    SELECT
        sum(least(a.cpus, q.cpus)) AS cpus,
        sum(CASE WHEN q.cpus < a.cpus THEN q.cpus END) AS quota
    FROM allowed AS a
    LEFT JOIN quotas AS q ON q.host = a.host
),
of_launchers AS (
    SELECT
        max(TRY_CAST(value AS BIGINT)) FILTER (WHERE key = 'cpus') AS cpus,
        max(TRY_CAST(value AS DOUBLE)) FILTER (WHERE key = 'cpu quota') AS quota
    FROM notes
),
stops AS (
    SELECT sum(times) AS times, sum(s) AS s
    FROM (
        SELECT
            max(TRY_CAST(split_part(value, chr(9), 1) AS BIGINT)) AS times,
            max(TRY_CAST(split_part(value, chr(9), 2) AS DOUBLE)) AS s
        FROM notes AS n
        JOIN processes AS p ON p.process = n.process
        WHERE key = 'cpu throttled'
        GROUP BY p.host, split_part(value, chr(9), 3)
    )
)
SELECT
    coalesce(m.cpus, least(l.cpus, l.quota)) AS cpus,
    CASE WHEN m.cpus IS NOT NULL THEN m.quota WHEN l.quota < l.cpus THEN l.quota END AS quota_cpus,
    CAST(t.times AS BIGINT) AS throttled,
    t.s AS throttled_s,
    (SELECT max(TRY_CAST(value AS BIGINT)) FROM notes WHERE key = 'memory_bytes') AS memory_bytes
FROM of_mains AS m
CROSS JOIN of_launchers AS l
CROSS JOIN stops AS t
