-- The activity of threads of running processes, as the kernel reported the activity when the tables were made:
-- threads of main processes and workers, the thread that takes the steps first (the first 500).
--   state    R: on a CPU or ready to run; S: asleep; D: asleep in the kernel; T: stopped
--   cpu      share of a CPU that the thread used while observed
--   still_s  time since the thread last ran; NULL: the thread runs, or the time is not known
--   call, path  the thread's current system call, and the call's file; NULL: none, or not known
WITH told AS (
    SELECT process, string_split(value, chr(9)) AS words FROM notes WHERE key = 'doing'
)
SELECT
    t.process,
    p.pid,
    r.role,
    r.worker,
    p.rank,
    coalesce(r.main, t.process) AS main,
    TRY_CAST(t.words[1] AS BIGINT) = p.pid AS is_first,
    coalesce(h.thread = r.thread, false) AS takes_steps,
    t.words[2] AS state,
    coalesce(TRY_CAST(t.words[3] AS DOUBLE), 0.0) AS cpu,
    TRY_CAST(t.words[4] AS DOUBLE) AS still_s,
    nullif(t.words[5], '') AS call,
    nullif(t.words[6], '') AS name,
    nullif(t.words[7], '') AS path
FROM told AS t
JOIN processes AS p ON p.process = t.process
JOIN roles AS r ON r.process = t.process
LEFT JOIN threads AS h
    ON h.process = t.process AND h.tid = TRY_CAST(t.words[1] AS BIGINT)
WHERE p.state = 'running'
ORDER BY
    list_position(['main', 'worker', 'other'], r.role),
    8 DESC,
    7 DESC,
    r.worker,
    t.process,
    t.words[1]
LIMIT 500
