-- checkpointer_saves: saves noted by the Checkpointers of rank 0, one row per save; the last note on a save
-- counts.
--   life         ns since 1970 at the start of the Checkpointer: identifies a Checkpointer, together with the process
--   number       of the save in this life, from 0; begin_ns: ns since 1970 at the call
--   outcome      good, failed or skipped
--   mode         background or blocking; NULL: not noted
--   local_s, durable_s            from the call until the save was on the fast tier, or on the slow tier; NULL:
--                                 never, or not known
--   lost_s, lost_to_durable_s     training time lost until the save was on the fast tier, or on the slow tier; the
--                                 block is included
--   backlog      number of earlier good saves that were not durable at the call; a save that never became durable
--                counts until a newer save is durable
--   risk_s       training time lost if the fast tier fails just before the save is durable: the time since the
--                call of the newest durable save, or since the start of the Checkpointer
WITH said AS (
    SELECT
        process,
        TRY_CAST(split_part(value, ' ', 1) AS BIGINT) AS turn,
        TRY_CAST(split_part(value, ' ', 2) AS BIGINT) AS life,
        TRY_CAST(split_part(value, ' ', 3) AS BIGINT) AS number,
        TRY_CAST(split_part(value, ' ', 4) AS BIGINT) AS step,
        TRY_CAST(split_part(value, ' ', 5) AS BIGINT) AS begin_ns,
        split_part(value, ' ', 6) AS outcome,
        split_part(value, ' ', 7) = '1' AS is_first,
        TRY_CAST(split_part(value, ' ', 8) AS BIGINT) AS size_bytes,
        TRY_CAST(split_part(value, ' ', 9) AS DOUBLE) AS block_s,
        TRY_CAST(split_part(value, ' ', 10) AS DOUBLE) AS waited_s,
        TRY_CAST(split_part(value, ' ', 11) AS DOUBLE) AS local_s,
        TRY_CAST(split_part(value, ' ', 12) AS DOUBLE) AS durable_s,
        TRY_CAST(split_part(value, ' ', 13) AS DOUBLE) AS lost_s,
        TRY_CAST(split_part(value, ' ', 14) AS DOUBLE) AS lost_to_durable_s,
        nullif(split_part(value, ' ', 15), '') AS mode
    FROM notes
    WHERE key = 'save'
),
known AS (
    SELECT
        process, life, number, step, begin_ns, outcome, is_first, size_bytes, block_s, waited_s, local_s,
        durable_s, lost_s, lost_to_durable_s, mode,
        begin_ns + CAST(durable_s * 1e9 AS BIGINT) AS durable_ns
    FROM said
    JOIN checkpointer_lives AS o USING (process, life)
    WHERE turn IS NOT NULL AND number IS NOT NULL AND begin_ns IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY process, life, number ORDER BY turn DESC) = 1
),
left_at AS (
    SELECT
        process, life, number, begin_ns, outcome,
        coalesce(durable_ns, min(durable_ns) OVER (
            PARTITION BY process, life ORDER BY begin_ns
            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        )) AS gone_ns
    FROM known
),
-- At equal times the call of a save (turn 0) sorts before the moment at which another save is durable (turn 1).
moments AS (
    SELECT process, life, number, begin_ns AS at_ns, 0 AS turn,
        CASE WHEN outcome = 'good' THEN 1 ELSE 0 END AS more
    FROM left_at
    UNION ALL
    SELECT process, life, NULL, gone_ns, 1, -1
    FROM left_at
    WHERE outcome = 'good' AND gone_ns IS NOT NULL
),
backlogs AS (
    SELECT
        process, life, number,
        sum(more) OVER (
            PARTITION BY process, life ORDER BY at_ns, turn, number
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) - more AS backlog
    FROM moments
),
arrivals AS (
    SELECT
        process, life, number,
        (durable_ns - coalesce(max(begin_ns) OVER (
            PARTITION BY process, life ORDER BY durable_ns, begin_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), life)) / 1e9 AS risk_s
    FROM known
    WHERE durable_ns IS NOT NULL
)
SELECT
    k.process, k.life, k.number, k.step, k.begin_ns, k.outcome, k.is_first, k.size_bytes, k.block_s,
    k.waited_s, k.local_s, k.durable_s, k.durable_ns, k.lost_s, k.lost_to_durable_s,
    k.mode,
    CAST(b.backlog AS BIGINT) AS backlog,
    a.risk_s
FROM known AS k
JOIN backlogs AS b ON b.process = k.process AND b.life = k.life AND b.number = k.number
LEFT JOIN arrivals AS a ON a.process = k.process AND a.life = k.life AND a.number = k.number
