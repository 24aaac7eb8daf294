-- step_balances: the time of each thread that takes steps, from the end of a step to the end of the next step.
--   index    number of the step that ended; start_ns: the end of the previous step, or the start of the first step
--   cpu_ns   time on a CPU, by the thread's own clock
--   delay_ns  time ready to run without a CPU, by schedstat; NULL: the kernel does not report the delay
--   blocked_ns  the rest: asleep, for any reason; NULL: not known
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
