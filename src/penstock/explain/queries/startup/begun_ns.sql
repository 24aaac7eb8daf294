-- The end of all start-ups: later calls are not examined.
SELECT CAST(coalesce(max(ns), 0) AS BIGINT)
FROM (
    SELECT max(to_ns) AS ns FROM beginnings
    UNION ALL
    SELECT max(end_ns) FROM imports
    UNION ALL
    SELECT max(end_ns) FROM restored
)
