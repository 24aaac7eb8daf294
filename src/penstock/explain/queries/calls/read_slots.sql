-- read_slots: data_reads begun after the start of the wall time, summed by start time: in 64 equal pieces of
-- the wall time, and in slots.  A slot lasts at least 100 ms and at least four times the 99th percentile of
-- the read times, so a read rarely outlasts the slot in which the read counts.
WITH extent AS (
    SELECT min(first_ns) AS from_ns, max(last_ns) AS to_ns FROM mains
),
widths AS (
    SELECT
        from_ns,
        to_ns,
        CAST(ceil((greatest(1, to_ns - from_ns) + 1) / 64) AS BIGINT) AS piece_ns,
        CAST(floor(greatest(
            1e8,
            (to_ns - from_ns) / 2000,
            coalesce(4 * (SELECT p99_ns FROM read_quantiles), 0)
        )) AS BIGINT) AS slot_ns
    FROM extent
)
SELECT
    (e.start_ns - w.from_ns) // w.piece_ns AS piece,
    (e.start_ns - w.from_ns) // w.slot_ns AS slot,
    e.start_ns < w.to_ns AS in_wall,
    any_value(w.piece_ns) AS piece_ns,
    any_value(w.slot_ns) AS slot_ns,
    count(*) AS reads,
    sum(e.duration_ns) AS ns,
    sum(e.moved_bytes) AS bytes
FROM data_reads AS e
CROSS JOIN widths AS w
WHERE e.start_ns >= w.from_ns
GROUP BY piece, slot, in_wall
