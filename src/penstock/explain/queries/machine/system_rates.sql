-- Activity of the host, in at most 240 equal bins of a second or more from the start of the run.
--   unit    B/s or share
--   value   the growth of a counter over time, or the mean of a level; over several hosts, the sum of B/s or the
--           mean of shares
WITH extent AS (
    SELECT min(start_ns) AS start_ns, greatest(1, max(end_ns) - min(start_ns)) AS run_ns FROM lives
),
bins AS (
    SELECT start_ns, greatest(1000000000, CAST(ceil(run_ns / 240) AS BIGINT)) AS ns FROM extent
),
grown AS (
    SELECT
        host,
        kind,
        device,
        quantity,
        at_ns,
        at_ns - lag(at_ns) OVER along AS ns,
        value - lag(value) OVER along AS value
    FROM system
    WHERE kind IN ('disk', 'network', 'processors')
    WINDOW along AS (PARTITION BY host, kind, device, quantity ORDER BY at_ns)
),
summed AS (
    SELECT
        host,
        CASE WHEN kind = 'processors' THEN kind ELSE kind || ' ' || quantity END AS what,
        at_ns,
        ns,
        CASE
            WHEN kind = 'processors'
                THEN sum(value) FILTER (WHERE quantity = 'busy_s') / nullif(sum(value), 0) * ns
            ELSE sum(value) * 1e9
        END AS value
    FROM grown
    WHERE ns > 0 AND (kind = 'processors' OR ends_with(quantity, '_bytes'))
    GROUP BY host, 2, kind, at_ns, ns
),
levels AS (
    SELECT host, 'memory' AS what, at_ns, 1 AS ns,
        1 - sum(value) FILTER (WHERE quantity = 'available_bytes')
            / nullif(sum(value) FILTER (WHERE quantity = 'total_bytes'), 0) AS value
    FROM system
    WHERE kind = 'memory'
    GROUP BY host, at_ns
    UNION ALL
    SELECT host, 'accelerator ' || device, at_ns, 1, value
    FROM system
    WHERE kind = 'accelerator' AND quantity = 'busy_share'
),
every AS (
    SELECT * FROM summed
    UNION ALL
    SELECT * FROM levels
),
of_hosts AS (
    SELECT
        e.host,
        e.what,
        greatest(0, (e.at_ns - e.ns // 2 - b.start_ns) // b.ns) AS bin,
        any_value(b.ns) / 1e9 AS bin_s,
        sum(e.value) / sum(e.ns) AS value
    FROM every AS e
    CROSS JOIN bins AS b
    WHERE e.value >= 0
    GROUP BY e.host, e.what, 3
)
SELECT
    what,
    CASE WHEN what LIKE '%bytes' THEN 'B/s' ELSE 'share' END AS unit,
    bin,
    any_value(bin_s) AS bin_s,
    CASE WHEN what LIKE '%bytes' THEN sum(value) ELSE avg(value) END AS value
FROM of_hosts
GROUP BY what, bin
ORDER BY what, bin
