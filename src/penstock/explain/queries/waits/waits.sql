-- waits: one row per data wait.  Sources are:
--   loader_waits  waits reported by a known loader; defines the columns that are not named here
--   stood         stretches in which the step thread (see mains) computed nothing and was blocked for another
--                 thread, another process or the network
--   own_batches   stretches in which the step thread makes a batch
-- Columns:
--   is_inferred  no loader reported the wait: index and iterator are NULL
--   made_by      of an inferred wait: the thread of the process that ended the wait; the waiting thread, if the
--                waiting thread waited for the network or makes the batch; NULL: not known
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
