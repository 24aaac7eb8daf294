-- stretch_calls: file calls inside each stretch, by layer and group.
--   ns           of the thread's own calls inside the stretch, the time for which storage may have delayed the
--                thread: see held; fits has the share to count
--   helped_ns    as ns, for the calls of helpers; see helped
--   calls, moved_bytes  of the calls that began inside the stretch, helpers' calls included
--   data_bytes   the part of moved_bytes in data files and in files that the job wrote (a downloaded data set): an
--                import or a read below /proc is none of the data set
WITH single AS (
    SELECT stretch_id, op_number, ns, 0.0 AS helped_ns, begins, path_class, moved_bytes
    FROM held
    WHERE is_own
    UNION ALL
    SELECT stretch_id, op_number, 0, ns, begins, path_class, moved_bytes FROM helped
),
sums AS (
    SELECT
        stretch_id,
        op_number,
        sum(ns) AS ns,
        sum(helped_ns) AS helped_ns,
        count(*) FILTER (WHERE begins) AS calls,
        sum(moved_bytes) FILTER (WHERE begins) AS moved_bytes,
        sum(moved_bytes) FILTER (WHERE begins AND coalesce(path_class, 'data') IN ('data', 'output'))
            AS data_bytes
    FROM single
    GROUP BY stretch_id, op_number
)
SELECT
    s.stretch_id,
    o.layer,
    o.op_group,
    sum(s.ns) AS ns,
    sum(s.helped_ns) AS helped_ns,
    CAST(sum(s.calls) AS BIGINT) AS calls,
    CAST(coalesce(sum(s.moved_bytes) FILTER (WHERE o.is_access), 0) AS BIGINT) AS moved_bytes,
    CAST(coalesce(sum(s.data_bytes) FILTER (WHERE o.is_access), 0) AS BIGINT) AS data_bytes
FROM sums AS s
JOIN ops AS o ON o.op_number = s.op_number
GROUP BY s.stretch_id, o.layer, o.op_group
