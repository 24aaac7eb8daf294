-- Bandwidth of data reads by how many were under way: the wall time in slots of at least 100 ms, and of
-- four times the 99th percentile of the reads, so that a read counts where it happens.
--   level     reads under way, a mean over the slot, rounded
--   slots     how many slots had that many, bytes_s their mean bandwidth
--   read_bytes  mean bytes of a read in them
-- A read counts in the slot in which it began.
WITH extent AS (
    SELECT min(first_ns) AS from_ns, max(last_ns) AS to_ns FROM mains
),
slots AS (
    SELECT
        from_ns,
        to_ns,
        CAST(greatest(
            1e8,
            (to_ns - from_ns) / 2000,
            coalesce(4 * (SELECT p99_ns FROM read_quantiles), 0)
        ) AS BIGINT) AS ns
    FROM extent
),
reads AS (
    SELECT
        (e.start_ns - s.from_ns) // s.ns AS slot,
        any_value(s.ns) AS slot_ns,
        count(*) AS reads,
        sum(e.duration_ns) AS ns,
        sum(e.moved_bytes) AS bytes
    FROM file_calls AS e
    CROSS JOIN slots AS s
    WHERE e.op_number IN (
            SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access
        )
        AND e.path_class = 'data'
        AND e.moved_bytes > 0
        AND e.duration_ns IS NOT NULL
        AND e.start_ns >= s.from_ns AND e.start_ns < s.to_ns
    GROUP BY slot
)
SELECT
    CAST(round(ns / slot_ns) AS INTEGER) AS level,
    count(*) AS slots,
    sum(bytes) / (count(*) * any_value(slot_ns) / 1e9) AS bandwidth_bps,
    sum(bytes) / sum(reads) AS read_bytes
FROM reads
GROUP BY level
HAVING level > 0
ORDER BY level
