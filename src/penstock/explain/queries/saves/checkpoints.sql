-- Checkpoints, one row each, at most 500: first the checkpoints that block the step loop, then the earliest.
--   written_bytes  bytes written meanwhile by the saving thread, or, if the saving thread wrote nothing, by the
--                  other threads of the process; of POSIX and STDIO the layer that moved more.  The program's
--                  standard output and error do not count
--   call_s         time in file calls that write, syncs included, by the threads counted in written_bytes;
--                  sync_s: in syncs only
--   files, path    number of files written; the file with the most bytes
--   outcome        NULL: no known failure; failed: ended in an exception; cut off: ended with the
--                  process; under way: the process runs
--   waited_s       of a save by another thread: how long the training thread (see mains) waited for the save
--   errno          of the exception; without an exception, of the latest write or metadata call of the process
--                  that failed meanwhile (failed_calls)
WITH streams AS (
    SELECT DISTINCT f.file
    FROM files AS f
    JOIN notes AS n ON n.key = 'stream' AND (n.value = f.path OR n.value = f.resolved_path)
),
writes AS (
    SELECT
        s.save_id,
        e.thread = s.thread AS is_own,
        o.layer,
        e.file,
        sum(e.moved_bytes) AS bytes,
        sum(least(s.end_ns, e.start_ns + coalesce(e.duration_ns, s.end_ns - e.start_ns)) - e.start_ns)
            AS ns,
        coalesce(sum(e.duration_ns) FILTER (WHERE NOT o.is_access), 0) AS sync_ns
    FROM saves AS s
    JOIN file_calls AS e
        ON e.process = s.process AND e.start_ns >= s.start_ns AND e.start_ns < s.end_ns
    JOIN ops AS o ON o.op_number = e.op_number
    LEFT JOIN streams AS t ON t.file = e.file
    WHERE o.op_group = 'write' AND t.file IS NULL
    GROUP BY s.save_id, is_own, o.layer, e.file
),
layers AS (
    SELECT
        save_id,
        is_own,
        layer,
        sum(bytes) AS bytes,
        sum(ns) AS ns,
        sum(sync_ns) AS sync_ns,
        count(DISTINCT file) AS files,
        arg_max(file, bytes) AS file
    FROM writes
    GROUP BY save_id, is_own, layer
),
broken AS (
    SELECT s.save_id, arg_max(e.errno, e.start_ns) AS errno
    FROM saves AS s
    JOIN failed_calls AS e
        ON e.process = s.process AND e.start_ns >= s.start_ns AND e.start_ns < s.end_ns
    WHERE e.op_group IN ('write', 'metadata')
    GROUP BY s.save_id
),
waited AS (
    SELECT process, thread, waits_for_ns, sum(end_ns - start_ns) AS ns
    FROM saves
    WHERE waits_for_ns IS NOT NULL
    GROUP BY process, thread, waits_for_ns
),
chosen AS (
    SELECT *
    FROM layers
    QUALIFY row_number() OVER (PARTITION BY save_id ORDER BY bytes > 0 DESC, is_own DESC, bytes DESC) = 1
)
SELECT
    s.save_id AS save,
    s.process,
    s.start_ns / 1e9 AS start_s,
    (s.end_ns - s.start_ns) / 1e9 AS duration_s,
    s.blocks,
    s.is_finished,
    CAST(coalesce(c.bytes, 0) AS BIGINT) AS written_bytes,
    coalesce(c.files, 0) AS files,
    coalesce(c.ns, 0) / 1e9 AS call_s,
    coalesce(c.sync_ns, 0) / 1e9 AS sync_s,
    f.path,
    CASE
        WHEN s.is_failed THEN 'failed'
        WHEN s.is_finished THEN NULL
        WHEN p.state IN ('running', 'unknown') THEN 'under way'
        ELSE 'cut off'
    END AS outcome,
    CAST(coalesce(s.errno, b.errno) AS INTEGER) AS errno,
    coalesce(w.ns, 0) / 1e9 AS waited_s
FROM saves AS s
JOIN processes AS p ON p.process = s.process
LEFT JOIN waited AS w ON w.process = s.process AND w.thread = s.thread AND w.waits_for_ns = s.start_ns
LEFT JOIN chosen AS c ON c.save_id = s.save_id
LEFT JOIN files AS f ON f.file = c.file
LEFT JOIN broken AS b ON b.save_id = s.save_id
WHERE s.waits_for_ns IS NULL
QUALIFY row_number() OVER (ORDER BY s.blocks DESC, s.start_ns, s.save_id) <= 500
ORDER BY s.start_ns, s.save_id
