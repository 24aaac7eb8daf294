-- step_balances: the time of each thread that takes steps, from one step's end to the next one's.
--   index    number of the step that ended; start_ns: where the step before it ended, or the first began
--   cpu_ns   time on a CPU, by the thread's own clock
--   delay_ns  time ready to run without a CPU, by schedstat; NULL: the kernel does not tell
--   blocked_ns  the rest: asleep, whatever for; NULL: not known
WITH told AS (
    SELECT
        process,
        thread,
        index,
        start_ns,
        start_ns + duration_ns AS end_ns,
        CASE WHEN a < 9223372036854775807 THEN a END AS cpu_ns,
        CASE WHEN b < 9223372036854775807 THEN b END AS delay_ns
    FROM spans
    WHERE kind = 'span' AND name = 'step balance' AND duration_ns IS NOT NULL
)
SELECT *, greatest(0, end_ns - start_ns - cpu_ns - delay_ns) AS blocked_ns
FROM told
