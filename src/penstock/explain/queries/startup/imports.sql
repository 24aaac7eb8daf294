-- imports: a row for each outermost import of a Python module, until the process trains or, in a loader's
-- worker, until the worker is ready for work.  If the training runs inside an import, the outer import does
-- not count, but the inner imports count.
--   is_main  imported in the thread of a beginning (beginnings); else imported in a worker
--   name     the package
WITH ends AS (
    SELECT process, thread, to_ns AS ns, true AS is_main FROM beginnings
    UNION ALL
    SELECT r.process, t.thread, r.worker_ns, false
    FROM roles AS r
    JOIN threads AS t ON t.process = r.process AND t.is_main
    WHERE r.role = 'worker' AND r.main IS NOT NULL
),
counted AS (
    SELECT
        s.process,
        s.thread,
        e.is_main,
        substr(s.name, 8) AS name,
        s.b AS cpu_ns,
        s.start_ns,
        s.end_ns
    FROM timed_spans AS s
    JOIN ends AS e ON e.process = s.process AND e.thread = s.thread
    -- The program's own spans may also be named 'import ...', but have depth 0.
    WHERE s.kind = 'span' AND starts_with(s.name, 'import ') AND s.a >= 1 AND s.is_finished
        AND s.end_ns <= e.ns
)
SELECT process, thread, is_main, name, cpu_ns, start_ns, end_ns
FROM counted
QUALIFY start_ns >= coalesce(max(end_ns) OVER (
    PARTITION BY process, thread ORDER BY start_ns, end_ns DESC
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
), start_ns)
