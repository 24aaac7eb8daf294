-- accounts: of file calls of 1 ms and more, the thread's time without waiting: see docs/FORMAT.md.
--   cpu_ns, delay_ns  on a CPU, at least; ready to run without one
SELECT process, thread, start_ns, max(a) AS cpu_ns, max(b) AS delay_ns
FROM spans
WHERE kind = 'account' AND duration_ns IS NOT NULL
GROUP BY process, thread, start_ns
