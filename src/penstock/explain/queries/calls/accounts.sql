-- accounts: for file calls of 1 ms and more, the thread's time on a CPU or ready to run: see docs/FORMAT.md.
--   cpu_ns    time on a CPU: a lower bound
--   delay_ns  time ready to run without a CPU
SELECT process, thread, start_ns, max(a) AS cpu_ns, max(b) AS delay_ns
FROM spans
WHERE kind = 'account' AND duration_ns IS NOT NULL
GROUP BY process, thread, start_ns
