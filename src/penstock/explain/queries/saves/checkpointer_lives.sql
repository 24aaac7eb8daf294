-- checkpointer_lives: the Checkpointers of rank 0, a row each, from the Checkpointers' own notes.
--   life    ns since 1970 at the start of the Checkpointer
--   fast, slow  the Checkpointer's tiers; slow: NULL with a single tier
--   end_ns  ns since 1970 when the Checkpointer was closed; NULL: never closed
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
