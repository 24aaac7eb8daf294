-- Packages imported in a beginning, and by a loader's workers before the workers were ready: the 20 packages with
-- the longest imports.
--   importer   main or worker; processes: number of main processes or workers that imported the package
--   import_s   time in outermost imports, summed over the processes; cpu_s: the part on a CPU
--   calls_s    the part of import_s in file calls and page faults that waited
WITH called AS (
    SELECT i.process, i.start_ns,
        sum(least(i.end_ns - c.start_ns, coalesce(c.duration_ns, i.end_ns - c.start_ns))) AS ns
    FROM file_waits AS c
    ASOF JOIN imports AS i
        ON i.process = c.process AND i.thread = c.thread AND i.start_ns <= c.start_ns
    WHERE c.start_ns < i.end_ns AND c.start_ns < getvariable('begun_ns')
    GROUP BY i.process, i.start_ns
)
SELECT
    CASE WHEN i.is_main THEN 'main' ELSE 'worker' END AS importer,
    i.name AS package,
    count(DISTINCT i.process) AS processes,
    sum(i.end_ns - i.start_ns) / 1e9 AS import_s,
    sum(i.cpu_ns) / 1e9 AS cpu_s,
    coalesce(sum(c.ns), 0) / 1e9 AS calls_s
FROM imports AS i
LEFT JOIN called AS c ON c.process = i.process AND c.start_ns = i.start_ns
GROUP BY 1, 2
HAVING sum(i.end_ns - i.start_ns) >= 1000000  -- less is too short to matter
ORDER BY import_s DESC, importer, package
LIMIT 20
