-- checkpointer_lives: notes of the Checkpointers of rank 0 on themselves, one row each.
--   life    ns since 1970 at its begin
--   fast, slow  its tiers; slow: NULL with a single tier
--   end_ns  ns since 1970 when it was closed; NULL: never closed
WITH told AS (
    SELECT process, CASE WHEN json_valid(value) THEN value END AS said
    FROM notes
    WHERE key = 'checkpointer'
)
SELECT
    process,
    TRY_CAST(json_extract_string(said, '$.life') AS BIGINT) AS life,
    max(json_extract_string(said, '$.fast')) AS fast,
    max(json_extract_string(said, '$.slow')) AS slow,
    max(TRY_CAST(json_extract_string(said, '$.end_unix_ns') AS BIGINT)) AS end_ns
FROM told
GROUP BY process, TRY_CAST(json_extract_string(said, '$.life') AS BIGINT)
HAVING max(TRY_CAST(json_extract_string(said, '$.rank') AS BIGINT)) = 0
    AND TRY_CAST(json_extract_string(said, '$.life') AS BIGINT) IS NOT NULL
