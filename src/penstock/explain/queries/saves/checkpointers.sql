-- Checkpointers of rank 0, a row each (the first 20), from each Checkpointer's notes on saves.
--   fast, slow       see checkpointer_lives
--   saves, good      requested saves; saves neither failed nor skipped
--   blocked_s        sum of the times for which saves blocked the training
--   lost_s, costed   the sum of the known lost times (up to durable where known), and the number of saves
--                    with a known lost time.  lost_s is NULL if no lost time is known
--   durable_mean_s, durable_max_s  time from the call until the save was on the slow tier
--   backlog          the largest number of earlier saves that were not yet durable when a save was called
--   risk_s           the highest cost of a loss of the fast tier just before a save was durable
--   end_risk_s       the cost of a loss of the fast tier at the end: the time since the call of the newest
--                    durable save, or since the start of the Checkpointer.  The end of a Checkpointer that
--                    was not closed is the last moment in the log of the process; NULL: not known
WITH sums AS (
    SELECT
        process,
        life,
        count(*) AS saves,
        count(*) FILTER (WHERE outcome = 'good') AS good,
        coalesce(sum(block_s), 0) AS blocked_s,
        sum(coalesce(lost_to_durable_s, lost_s)) AS lost_s,
        count(coalesce(lost_to_durable_s, lost_s)) AS costed,
        avg(durable_s) AS durable_mean_s,
        max(durable_s) AS durable_max_s,
        max(backlog) AS backlog,
        max(risk_s) AS risk_s,
        max(begin_ns) FILTER (WHERE durable_ns IS NOT NULL) AS safe_ns,
        max(number) AS last_number,
        max(begin_ns) AS last_ns
    FROM checkpointer_saves
    GROUP BY process, life
),
-- The end of the last Checkpointer of a process, if not closed: the start of the last save (notes), plus the time
-- from the span of the last save to the end of the process (spans).
ends AS (
    SELECT
        s.process,
        s.life,
        s.last_ns + max(l.end_ns) - max(t.start_ns) AS end_ns
    FROM sums AS s
    JOIN (SELECT process, max(life) AS life FROM checkpointer_lives GROUP BY process) AS o
        ON o.process = s.process AND o.life = s.life
    JOIN lives AS l ON l.process = s.process
    JOIN timed_spans AS t
        ON t.process = s.process AND t.name = 'checkpoint' AND t.index = s.last_number
    GROUP BY s.process, s.life, s.last_ns
)
SELECT
    o.process,
    o.fast,
    o.slow,
    coalesce(s.saves, 0) AS saves,
    coalesce(s.good, 0) AS good,
    coalesce(s.blocked_s, 0) AS blocked_s,
    s.lost_s,
    coalesce(s.costed, 0) AS costed,
    s.durable_mean_s,
    s.durable_max_s,
    coalesce(s.backlog, 0) AS backlog,
    s.risk_s,
    greatest(0, coalesce(o.end_ns, e.end_ns) - coalesce(s.safe_ns, o.life)) / 1e9 AS end_risk_s
FROM checkpointer_lives AS o
LEFT JOIN sums AS s ON s.process = o.process AND s.life = o.life
LEFT JOIN ends AS e ON e.process = o.process AND e.life = o.life
ORDER BY o.life, o.process
LIMIT 20
