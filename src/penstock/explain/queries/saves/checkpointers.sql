-- Checkpointers of rank 0, one row each (the first 20), from what they have noted of their saves.
--   fast, slow       checkpointer_lives.sql
--   saves, good      asked for, and not failed or skipped
--   blocked_s        the sum of their blocks
--   lost_s, costed   the sum of their lost times, to durable where that is known, and of how many; NULL:
--                    of none
--   durable_mean_s, durable_max_s  from the call until it was on the slow tier
--   backlog          the most of them that were not durable when another one was called
--   risk_s           the most that a loss of the fast tier would have cost just before one was durable
--   end_risk_s       what its loss would have cost at the end: the time since the newest one that was
--                    durable was called, or since the Checkpointer began.  Of one that was not closed, to
--                    the last moment that its process's log knows; NULL: not known
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
-- The last one of a process that has not closed it: from its last save on by the clock of its spans.
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
