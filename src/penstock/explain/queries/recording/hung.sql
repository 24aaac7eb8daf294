-- Main processes that run, were killed or ended with an error, each with the open span or call of the thread that
-- takes the steps: the longest first.
--   doing, number  the thread's outermost open span (data wait, loader start, loader end, checkpoint, restore, load
--                  state, barrier), else the open file call, else the open call that may block forever (from
--                  standstills: another thread, network, pipe, interpreter lock; without epoll, where an idle event
--                  loop waits; in a process that ended with an error: an unanswered call in the last five seconds
--                  before the end); NULL: no span and no call is open
--   is_blocked     true: doing is a call that may block forever
--   path           the file call's path
--   open_s         time since the begin of doing
--   longest_s      the longest ended span or call with the name of doing; 0: none ended
--   quiet_s        time since the end of the latest step; NULL: no step has ended
--   calls          file calls on data or output, of the process and the workers, ended in the last ten seconds
WITH running AS (
    SELECT
        m.process,
        m.thread,
        l.end_ns,
        p.state = 'running' AS is_running,
        p.state IN ('running', 'killed') AS is_open
    FROM mains AS m
    JOIN processes AS p ON p.process = m.process
    JOIN lives AS l ON l.process = m.process
    WHERE p.state IN ('running', 'killed') OR (p.state = 'exited' AND p.status <> 0)
),
spans_of AS (
    SELECT s.*, r.end_ns AS now_ns
    FROM timed_spans AS s
    JOIN running AS r ON r.process = s.process AND r.thread = s.thread
    WHERE s.kind = 'span' AND s.name IN (
        'data wait', 'loader start', 'loader end', 'checkpoint', 'restore', 'load state', 'barrier'
    )
),
open_ones AS (
    SELECT process, name, index AS number, CAST(NULL AS VARCHAR) AS path, start_ns, 0 AS turn
    FROM spans_of
    WHERE NOT is_finished AND is_outermost AND process IN (SELECT process FROM running WHERE is_open)
    UNION ALL
    SELECT e.process, o.op, NULL, f.path, e.start_ns, 1
    FROM file_calls AS e
    JOIN running AS r ON r.process = e.process AND r.thread = e.thread
    JOIN ops AS o ON o.op_number = e.op_number
    LEFT JOIN files AS f ON f.file = e.file
    WHERE e.duration_ns IS NULL AND r.is_open
    UNION ALL
    SELECT s.process, s.what, NULL, NULL, s.start_ns, 2
    FROM standstills AS s
    JOIN running AS r ON r.process = s.process AND r.thread = s.thread
    LEFT JOIN blocked AS b
        ON b.process = s.process AND b.thread = s.thread AND b.start_ns = s.start_ns AND b.op = 'epoll'
    WHERE NOT s.is_answered
        AND s.what IN ('other thread', 'network', 'pipe', 'interpreter lock')
        AND b.process IS NULL
        AND s.end_ns >= r.end_ns - CASE WHEN r.is_open THEN 0 ELSE 5000000000 END
),
chosen AS (
    SELECT *
    FROM open_ones
    QUALIFY row_number() OVER (PARTITION BY process ORDER BY turn, start_ns) = 1
),
longest AS (
    SELECT process, name, max(end_ns - start_ns) AS ns
    FROM spans_of
    WHERE is_finished
    GROUP BY process, name
    UNION ALL
    SELECT s.process, s.what, max(s.end_ns - s.start_ns)
    FROM standstills AS s
    JOIN running AS r ON r.process = s.process AND r.thread = s.thread
    WHERE s.is_answered
    GROUP BY s.process, s.what
),
stepped AS (
    SELECT s.process, max(s.end_ns) AS ns FROM steps AS s GROUP BY s.process
),
family AS (
    SELECT o.process, coalesce(o.main, o.process) AS main FROM roles AS o
),
lately AS (
    SELECT a.main, count(*) AS calls
    FROM file_calls AS e
    JOIN family AS a ON a.process = e.process
    JOIN running AS r ON r.process = a.main
    WHERE e.path_class IN ('data', 'output') AND e.start_ns + e.duration_ns > r.end_ns - 10000000000
    GROUP BY a.main
)
SELECT
    r.process,
    p.pid,
    p.rank,
    r.is_running,
    c.name AS doing,
    c.number,
    c.path,
    greatest(0, r.end_ns - c.start_ns) / 1e9 AS open_s,
    coalesce(l.ns, 0) / 1e9 AS longest_s,
    greatest(0, r.end_ns - s.ns) / 1e9 AS quiet_s,
    coalesce(y.calls, 0) AS calls,
    coalesce(c.turn = 2, false) AS is_blocked
FROM running AS r
JOIN processes AS p ON p.process = r.process
LEFT JOIN chosen AS c ON c.process = r.process
LEFT JOIN longest AS l ON l.process = r.process AND l.name = c.name
LEFT JOIN stepped AS s ON s.process = r.process
LEFT JOIN lately AS y ON y.main = r.process
ORDER BY open_s DESC NULLS LAST, r.process
LIMIT 1000
