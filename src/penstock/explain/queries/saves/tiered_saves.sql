-- Saves of the Checkpointers of rank 0, a row per save in order of time (the first 500).
--   mode       background, or blocking: the caller waited until the save was on the fast tier
--   blocked_s  time for which the save blocked the caller; waited_s: the part of blocked_s spent waiting for the
--              save before
--   other columns: see checkpointer_saves.sql
SELECT
    s.process,
    s.step,
    s.outcome,
    s.mode,
    s.size_bytes,
    s.block_s AS blocked_s,
    s.waited_s,
    s.lost_s,
    s.lost_to_durable_s,
    s.local_s,
    s.durable_s,
    s.backlog,
    s.risk_s
FROM checkpointer_saves AS s
ORDER BY s.begin_ns, s.process, s.number
LIMIT 500
