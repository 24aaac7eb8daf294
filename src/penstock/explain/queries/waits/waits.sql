-- waits: one row per data wait: waits told by a known loader (loader_waits, which defines the columns that
-- are not named here), stretches in which the thread that takes the steps was blocked for another
-- thread, another process or the network while it computed nothing (stood), and stretches in which this
-- thread makes a batch itself (own_batches).
--   is_inferred  no loader told the wait: index and iterator are NULL
--   made_by      of an inferred wait: the thread of the process that ended the wait; if that thread waited
--                for the network itself, the waiting thread; NULL: not known
WITH told AS (
    SELECT *, false AS is_inferred, CAST(NULL AS INTEGER) AS made_by FROM loader_waits
    UNION ALL
    SELECT process, thread, NULL, NULL, start_ns, end_ns, true, true, made_by IS NULL,
        NULL, NULL, false, true, made_by
    FROM stood
    WHERE is_data
    UNION ALL
    SELECT process, thread, NULL, NULL, start_ns, end_ns, true, true, false, NULL, NULL, false, true, thread
    FROM own_batches
)
SELECT row_number() OVER (ORDER BY process, start_ns) AS wait_id, * FROM told
