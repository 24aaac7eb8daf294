-- helped: single calls of helper threads inside stretches.  Threads that save or log are helpers too, so only reads
-- count, and metadata calls on files other than output.
--   ns  the helper's time in the call while the stretch's own thread was in no file call, reduced to the part for which
--       storage may have delayed the helper.  An instant with calls of several helpers is divided equally among the
--       helpers, so no instant counts twice
-- Computed by a sweep over the begins and ends of the calls of a stretch: `passed_ns` is the time credited to
-- each helper in a call since the stretch began.
WITH pieces AS MATERIALIZED (
    SELECT i.*
    FROM inside AS i
    JOIN ops AS o ON o.op_number = i.op_number
    WHERE i.stretch_id IN (
            SELECT stretch_id FROM watched WHERE NOT is_own
            UNION ALL
            SELECT stretch_id FROM stretches WHERE kind = 'pool'
        )
        AND (i.is_own OR o.op_group = 'read' OR i.path_class IS DISTINCT FROM 'output')
),
edges AS (
    SELECT stretch_id, is_own, unnest([from_ns, to_ns]) AS ns, unnest([1, -1]) AS begins
    FROM pieces
),
moments AS (
    SELECT
        stretch_id,
        ns,
        lead(ns) OVER along - ns AS until_next_ns,
        sum(sum(begins) FILTER (WHERE NOT is_own)) OVER along AS helpers,
        coalesce(sum(sum(begins) FILTER (WHERE is_own)) OVER along, 0) AS own
    FROM edges
    GROUP BY stretch_id, ns
    WINDOW along AS (PARTITION BY stretch_id ORDER BY ns)
),
passing AS (
    SELECT
        stretch_id,
        ns,
        coalesce(sum(CASE WHEN own = 0 AND helpers > 0 THEN until_next_ns / helpers ELSE 0 END) OVER (
            PARTITION BY stretch_id ORDER BY ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS passed_ns
    FROM moments
)
SELECT
    p.* EXCLUDE (is_own, delay_ns, from_ns, to_ns),
    (t.passed_ns - f.passed_ns) * p.held_ns / greatest(1, p.duration_ns) AS ns
FROM pieces AS p
JOIN passing AS f ON f.stretch_id = p.stretch_id AND f.ns = p.from_ns
JOIN passing AS t ON t.stretch_id = p.stretch_id AND t.ns = p.to_ns
WHERE NOT p.is_own
