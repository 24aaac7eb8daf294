-- What the host of the run offers, as noted when the recording began; NULL: not noted.
--   cpus          processors that the job may use
--   memory_bytes  of the host, or of the job's control group where that is less
SELECT
    max(TRY_CAST(value AS INTEGER)) FILTER (WHERE key = 'cpus') AS cpus,
    max(TRY_CAST(value AS BIGINT)) FILTER (WHERE key = 'memory_bytes') AS memory_bytes
FROM notes
