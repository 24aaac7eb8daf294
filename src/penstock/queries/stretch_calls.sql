-- stretch_calls: file calls inside each stretch, by its own thread, by layer and group.
--   ns     the part of the calls' time that lies inside the stretch
--   calls, moved_bytes  of the calls that began inside it
WITH calls AS (
    SELECT process, thread, op_number, moved_bytes, start_ns, start_ns + duration_ns AS end_ns,
        start_ns // getvariable('slot_ns') AS slot
    FROM file_calls
    WHERE start_ns // getvariable('slot_ns') = (start_ns + duration_ns) // getvariable('slot_ns')
),
inside AS (
    SELECT
        w.stretch_id,
        c.op_number,
        least(c.end_ns, w.to_ns) - greatest(c.start_ns, w.from_ns) AS ns,
        c.start_ns >= w.from_ns AS begins,
        c.moved_bytes
    FROM calls AS c
    JOIN watched AS w
        ON w.process = c.process AND w.thread = c.thread AND w.slot = c.slot
            AND c.start_ns < w.to_ns AND (c.end_ns > w.from_ns OR c.start_ns >= w.from_ns)
    UNION ALL
    SELECT
        l.stretch_id,
        l.op_number,
        least(l.end_ns, s.to_ns) - greatest(l.start_ns, s.from_ns),
        l.start_ns >= s.from_ns,
        l.moved_bytes
    FROM long_calls AS l
    JOIN stretches AS s ON s.stretch_id = l.stretch_id
),
sums AS (
    SELECT
        stretch_id,
        op_number,
        sum(ns) AS ns,
        count(*) FILTER (WHERE begins) AS calls,
        sum(moved_bytes) FILTER (WHERE begins) AS moved_bytes
    FROM inside
    GROUP BY stretch_id, op_number
)
SELECT
    s.stretch_id,
    o.layer,
    o.op_group,
    CAST(sum(s.ns) AS BIGINT) AS ns,
    CAST(sum(s.calls) AS BIGINT) AS calls,
    CAST(coalesce(sum(s.moved_bytes) FILTER (WHERE o.is_access), 0) AS BIGINT) AS moved_bytes
FROM sums AS s
JOIN ops AS o ON o.op_number = s.op_number
GROUP BY s.stretch_id, o.layer, o.op_group
