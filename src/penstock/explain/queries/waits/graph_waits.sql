-- graph_waits: one row per batch that a graph (Keras' fit, a tf.function with an iterator as argument) requested from
-- a tf.data iterator on the host.  The native recorder learns of the request after the fact.
--   thread  the thread that called the graph
--   index   number of the batch in the process, over all epochs; NULL: no batch came, the epoch was over
--   cpu_ns  CPU time of the whole process from the call of the graph to the batch; NULL: not measured (in each call
--           of a graph only the time to the first batch is measured)
--   delay_ns  run-queue delay of all threads of the process in the time of cpu_ns; NULL: not measured
WITH asked AS (
    SELECT
        process,
        start_ns - a * 1000 AS start_ns,
        start_ns AS end_ns,
        b AS cpu_ns,
        CASE WHEN next_name = 'get next delay' THEN next_b - 1 END AS delay_ns
    FROM (
        SELECT
            *,
            lead(name) OVER (PARTITION BY process, thread ORDER BY start_ns) AS next_name,
            lead(b) OVER (PARTITION BY process, thread ORDER BY start_ns) AS next_b
        FROM spans
        WHERE kind = 'span' AND name IN ('get next', 'get next delay') AND duration_ns IS NOT NULL
    )
    WHERE name = 'get next'
),
told AS (
    SELECT process, thread, start_ns, a AS cpu_ns, CASE WHEN b > 0 THEN b - 1 END AS delay_ns
    FROM spans
    WHERE kind = 'span' AND name = 'graph'
),
by_python AS (
    SELECT process, start_ns, coalesce(start_ns + duration_ns, 9223372036854775807) AS end_ns
    FROM spans
    WHERE kind = 'span' AND name = 'data wait'
),
in_graphs AS (
    SELECT a.*
    FROM asked AS a
    ASOF LEFT JOIN by_python AS p ON p.process = a.process AND p.start_ns <= a.end_ns
    WHERE p.end_ns IS NULL OR p.end_ns < a.end_ns
),
called AS (
    SELECT
        i.process,
        t.thread,
        greatest(i.start_ns, t.start_ns) AS start_ns,
        i.end_ns,
        CASE
            WHEN row_number() OVER (
                PARTITION BY t.process, t.thread, t.start_ns ORDER BY i.end_ns
            ) = 1
            THEN greatest(0, i.cpu_ns - t.cpu_ns)
        END AS cpu_ns,
        CASE
            WHEN row_number() OVER (
                PARTITION BY t.process, t.thread, t.start_ns ORDER BY i.end_ns
            ) = 1
            THEN greatest(0, i.delay_ns - t.delay_ns)
        END AS delay_ns
    FROM in_graphs AS i
    ASOF JOIN told AS t ON t.process = i.process AND t.start_ns <= i.end_ns
),
ends AS (
    SELECT c.process, c.end_ns
    FROM spans AS s
    ASOF JOIN called AS c ON c.process = s.process AND c.end_ns <= s.start_ns
    WHERE s.kind = 'span' AND s.name = 'delivered' AND s.index IS NULL AND s.a = 0
)
SELECT
    c.process,
    c.thread,
    CASE
        WHEN e.end_ns IS NULL
        THEN row_number() OVER (
            PARTITION BY c.process, e.end_ns IS NULL ORDER BY c.start_ns, c.end_ns
        ) - 1
    END AS index,
    c.start_ns,
    c.end_ns,
    c.cpu_ns,
    c.delay_ns
FROM called AS c
LEFT JOIN ends AS e ON e.process = c.process AND e.end_ns = c.end_ns
