-- Totals of the run's page faults.
--   state     'measured', or the reason why page faults were not measured; NULL: no attempt to measure, as in a
--             log of another tool
--   lost      page faults counted by the kernel without a sample: file and time are not known
--   is_user_only  page faults inside system calls are not seen
--   cut       the reason why the list of single page faults ends before the run; NULL: the list ends with the run
--   major, minor, waited, waited_s  of data files, as in fault_files
--   blocking_s  time for which the step loop stood still for pages of data files; a mean over main processes
--   memory    page faults of memory without a file
SELECT
    CASE
        WHEN EXISTS (SELECT 1 FROM notes WHERE key = 'page faults' AND value = 'measured') THEN 'measured'
        ELSE (SELECT min(value) FROM notes WHERE key = 'page faults')
    END AS state,
    (SELECT CAST(coalesce(sum(TRY_CAST(value AS BIGINT)), 0) AS BIGINT)
        FROM notes WHERE key = 'page faults lost') AS lost,
    EXISTS (SELECT 1 FROM notes WHERE key = 'page faults in user mode only') AS is_user_only,
    (SELECT min(value) FROM notes WHERE key = 'page faults cut') AS cut,
    CAST(coalesce(sum(major) FILTER (WHERE path_class = 'data'), 0) AS BIGINT) AS major,
    CAST(coalesce(sum(minor) FILTER (WHERE path_class = 'data'), 0) AS BIGINT) AS minor,
    CAST(coalesce(sum(waited) FILTER (WHERE path_class = 'data'), 0) AS BIGINT) AS waited,
    coalesce(sum(major_ns + waited_ns) FILTER (WHERE path_class = 'data'), 0) / 1e9 AS waited_s,
    (SELECT coalesce(sum(b.held_ns), 0) / 1e9 / greatest(1, (SELECT count(*) FROM mains))
        FROM blocking_files AS b
        JOIN ops AS o ON o.op_number = b.op_number
        LEFT JOIN file_kinds AS k ON k.file = b.file
        WHERE o.op_group = 'page fault' AND coalesce(k.path_class, 'data') = 'data') AS blocking_s,
    CAST(coalesce(sum(major + minor) FILTER (WHERE file IS NULL), 0) AS BIGINT) AS memory
FROM fault_counts
