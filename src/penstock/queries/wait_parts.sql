-- wait_parts: each data wait, split into what the worker that owed the batch was doing; the parts of a
-- wait sum to the wait.
--   read, write, metadata  the thread that fetches is inside a file call of that group that may have held
--                  it up (see file_waits and bounds); or it is blocked and a helper, another thread of its
--                  process, is inside one (see helped and fits)
--   page fault     the same of page faults of mapped files that waited: see file_waits
--   cpu            in a fetch, outside file calls, on a CPU: decoding, augmenting
--   cached         in a fetch, in a file call and on a CPU: the bytes came from memory
--   not scheduled  in a fetch, in file calls or outside, ready to run but without a CPU
--   blocked        in a fetch, none of these: asleep on something that is no file call
--   idle           in no fetch: it had not been asked for the batch, or nothing was left to do
--   loader start, worker start, pass end, hand-over  see stretches
--   not observed   no fetch was recorded, or the fetch never ended
-- Of a pooled wait, whose loader does not say who makes a batch, read and metadata are the time in which
-- any thread was in such a call (pool_calls), cpu what the whole process used outside them, blocked what
-- is left; not observed what is left where workers' processor time, or all of it, is not known.
WITH split AS (
    SELECT s.wait_id, c.op_group AS part, c.ns * f.fit + c.helped_ns * f.helped_fit AS ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    JOIN fits AS f ON f.stretch_id = c.stretch_id
    UNION ALL
    SELECT
        wait_id,
        unnest(['cpu', 'cached', 'not scheduled']),
        rest_ns * unnest([cpu_share, cached_share, delay_share])
    FROM stretches AS s
    JOIN fits AS f ON f.stretch_id = s.stretch_id
    UNION ALL
    SELECT
        s.wait_id,
        CASE
            WHEN s.kind IN ('loader start', 'worker start', 'pass end', 'hand-over') THEN s.kind
            WHEN s.kind = 'gap' AND s.process = s.main THEN 'hand-over'
            WHEN s.kind = 'gap' THEN 'idle'
            WHEN s.kind = 'fetch' AND f.cpu_share IS NOT NULL THEN 'blocked'
            WHEN s.kind = 'pool' AND f.cpu_share IS NOT NULL
                AND s.main NOT IN (SELECT main FROM pool_members WHERE process <> main) THEN 'blocked'
            ELSE 'not observed'
        END,
        f.blocked_ns
    FROM stretches AS s
    JOIN fits AS f ON f.stretch_id = s.stretch_id
)
SELECT wait_id, part, sum(ns) AS ns
FROM split
WHERE wait_id IS NOT NULL AND ns > 1e-3  -- less is what rounding left
GROUP BY wait_id, part
