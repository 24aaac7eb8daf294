-- Bandwidth of data reads by number of reads under way, in the slots of read_slots.
--   level     reads under way: the mean over a slot, rounded
--   slots     number of slots with the level
--   bandwidth_bps, read_bytes  mean bandwidth of the slots; mean bytes of a read in the slots
-- A read counts in the slot where the read began.
WITH slots AS (
    SELECT
        slot,
        any_value(slot_ns) AS slot_ns,
        sum(reads) AS reads,
        sum(ns) AS ns,
        sum(bytes) AS bytes
    FROM read_slots
    WHERE in_wall
    GROUP BY slot
)
SELECT
    CAST(round(ns / slot_ns) AS INTEGER) AS level,
    count(*) AS slots,
    sum(bytes) / (count(*) * any_value(slot_ns) / 1e9) AS bandwidth_bps,
    sum(bytes) / sum(reads) AS read_bytes
FROM slots
GROUP BY level
HAVING level > 0
ORDER BY level
