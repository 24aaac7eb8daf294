-- wait_parts: each data wait, split by the activity of the worker that owed the batch; the parts of a wait
-- sum to the wait.
--   read, write, metadata  the fetching thread is inside a read, write or metadata call on a file, and the call may
--                  have delayed the thread (see file_waits and bounds); or the thread is blocked and a helper
--                  (another thread of the process) is inside a file call (see helped and fits)
--   page fault     as read, for page faults of mapped files in which the thread waited: see file_waits
--   cpu            in a fetch, outside file calls, on a CPU: decoding, augmenting
--   cached         in a fetch, in a file call and on a CPU: the bytes came from memory
--   not scheduled  in a fetch, in file calls or outside, ready to run but without a CPU
--   blocked        in a fetch, none of the above: asleep, but in no file call
--   network        in a fetch, blocked in a call on a socket; in a pooled wait: another thread of the pool was blocked
--                  in a call on a socket, and the answer came before the wait ended (see pool_stands)
--   idle           in no fetch: nobody had asked for the batch yet, or no work was left
--   loader start, worker start, pass end, hand-over  see stretches
--   program start  in an inferred pooled wait: a program that the waiting process started was not running yet, and
--                  none of the above (program_starts)
--   not observed   no fetch was recorded, or the fetch never ended
-- If another thread ended an inferred wait (stretch kind 'made'), the parts describe the activity of the ending
-- thread, and cpu is all time in no blocking call, with or without a CPU, except for a batch that the waiting thread
-- makes: time off the CPU in no recorded call is not observed (own_hidden).
-- In a pooled wait the loader does not report the maker of a batch.  Read and metadata are then the time with any
-- thread of the pool in a read or metadata call (pool_calls), cpu is the whole process's CPU time outside these calls,
-- and blocked is the rest.  The rest is not observed if the CPU time is not known, for all processes or for the
-- workers only.  Cpu is also the time in which a thread that delivers data computed, in an inferred pooled wait of any
-- process, in others of a worker: see pool_makers.
WITH stands AS (
    SELECT
        t.stretch_id,
        sum(CASE WHEN t.what = 'network' THEN t.ns ELSE 0 END) AS network_ns,
        sum(t.ns) AS ns
    FROM stretch_stands AS t
    GROUP BY t.stretch_id
),
-- The blocked time of a fetch is known only as a sum: calls on sockets get at most the sum, and the rest stays
-- blocked.  In a 'made' stretch, time in no blocking call counts as cpu.
asleep AS (
    SELECT
        s.stretch_id,
        least(f.blocked_ns, t.network_ns) AS network_ns,
        CASE WHEN s.kind = 'made' THEN least(f.blocked_ns, t.ns) - least(f.blocked_ns, t.network_ns) ELSE 0 END
            AS blocked_ns
    FROM stretches AS s
    JOIN fits AS f ON f.stretch_id = s.stretch_id
    JOIN stands AS t ON t.stretch_id = s.stretch_id
    UNION ALL
    SELECT p.stretch_id, least(f.blocked_ns, p.network_ns), 0
    FROM (SELECT stretch_id, sum(network_ns) AS network_ns FROM pool_stands GROUP BY stretch_id) AS p
    JOIN fits AS f ON f.stretch_id = p.stretch_id
),
-- In a pooled wait, cpu is also the time in which a thread that delivers data computed, at most the time left by file
-- calls, the network and the CPU time of the main process.
made AS (
    SELECT p.stretch_id, least(p.cpu_ns, f.blocked_ns - coalesce(a.network_ns, 0)) AS cpu_ns
    FROM pool_makers AS p
    JOIN fits AS f ON f.stretch_id = p.stretch_id
    LEFT JOIN asleep AS a ON a.stretch_id = p.stretch_id
),
begun AS (
    SELECT
        p.stretch_id,
        least(p.ns, greatest(0, f.blocked_ns - coalesce(a.network_ns, 0) - coalesce(m.cpu_ns, 0))) AS start_ns
    FROM program_starts AS p
    JOIN fits AS f ON f.stretch_id = p.stretch_id
    LEFT JOIN asleep AS a ON a.stretch_id = p.stretch_id
    LEFT JOIN made AS m ON m.stretch_id = p.stretch_id
),
split AS (
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
            WHEN s.kind = 'made' THEN 'cpu'
            WHEN s.kind = 'fetch' AND f.cpu_share IS NOT NULL THEN 'blocked'
            WHEN s.kind = 'pool' AND f.cpu_share IS NOT NULL
                AND s.main NOT IN (SELECT main FROM pool_members WHERE process <> main) THEN 'blocked'
            ELSE 'not observed'
        END,
        f.blocked_ns - coalesce(a.network_ns, 0) - coalesce(a.blocked_ns, 0) - coalesce(m.cpu_ns, 0)
            - coalesce(h.ns, 0) - coalesce(b.start_ns, 0)
    FROM stretches AS s
    JOIN fits AS f ON f.stretch_id = s.stretch_id
    LEFT JOIN asleep AS a ON a.stretch_id = s.stretch_id
    LEFT JOIN made AS m ON m.stretch_id = s.stretch_id
    LEFT JOIN own_hidden AS h ON h.stretch_id = s.stretch_id
    LEFT JOIN begun AS b ON b.stretch_id = s.stretch_id
    UNION ALL
    SELECT s.wait_id, 'program start', b.start_ns
    FROM stretches AS s
    JOIN begun AS b ON b.stretch_id = s.stretch_id
    UNION ALL
    SELECT s.wait_id, 'not observed', h.ns
    FROM stretches AS s
    JOIN own_hidden AS h ON h.stretch_id = s.stretch_id
    UNION ALL
    SELECT s.wait_id, 'cpu', m.cpu_ns
    FROM stretches AS s
    JOIN made AS m ON m.stretch_id = s.stretch_id
    UNION ALL
    SELECT s.wait_id, unnest(['network', 'blocked']), unnest([a.network_ns, a.blocked_ns])
    FROM stretches AS s
    JOIN asleep AS a ON a.stretch_id = s.stretch_id
)
SELECT wait_id, part, sum(ns) AS ns
FROM split
WHERE wait_id IS NOT NULL AND ns > 1e-3  -- smaller values are rounding errors
GROUP BY wait_id, part
