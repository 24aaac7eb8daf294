-- What threads of running processes did when the tables were made, by the kernel's account: those of main
-- processes and workers, the thread that takes the steps first (the first 500).
--   state    R on a CPU or ready for one, S asleep, D asleep in the kernel, T stopped
--   cpu      share of a CPU that it used while it was looked at
--   still_s  for how long it has not run; NULL: it runs, or that is not known
--   call, path  the system call it is in, and the file of that; NULL: none, or not known
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
