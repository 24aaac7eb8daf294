-- Awaited requests: the beginning of the data wait, and of the first step that ended after the beginning of the wait.
-- Awaited: under way during the wait, and begun during the owed fetch, by the thread of the fetch, or by a thread without
-- fetches (an event loop, a pool).  For a wait without a known fetch, requests of the waiting process count.
WITH fetching AS (
    SELECT DISTINCT process, thread FROM fetches
),
told AS (
    SELECT
        r.process, r.thread, r.request, r.start_ns, r.end_ns,
        f.thread IS NOT NULL AS is_fetching
    FROM request_tries AS r
    LEFT JOIN fetching AS f ON f.process = r.process AND f.thread = r.thread
    WHERE r.requests = 1 AND r.thread IS NOT NULL
),
owed AS (
    SELECT o.wait_id, f.process, f.thread, f.start_ns, f.end_ns
    FROM owed_fetches AS o
    JOIN fetches AS f ON f.fetch_id = o.fetch_id
),
met AS (
    SELECT w.wait_id, r.process, r.thread, r.request
    FROM waits AS w
    JOIN owed AS o ON o.wait_id = w.wait_id
    JOIN told AS r ON r.process = o.process AND r.start_ns >= o.start_ns AND r.start_ns < o.end_ns
    WHERE r.end_ns > w.start_ns AND r.start_ns < w.end_ns AND (r.thread = o.thread OR NOT r.is_fetching)
    UNION ALL
    SELECT w.wait_id, r.process, r.thread, r.request
    FROM waits AS w
    JOIN told AS r ON r.process = w.process AND r.end_ns > w.start_ns AND r.start_ns < w.end_ns
    WHERE w.wait_id NOT IN (SELECT wait_id FROM owed)
),
stepped AS (
    SELECT w.wait_id, s.name, s.start_ns
    FROM waits AS w
    ASOF JOIN (SELECT process, thread, name, start_ns, end_ns FROM timed_spans WHERE kind = 'step') AS s
        ON s.process = w.process AND s.thread = w.thread AND s.end_ns > w.start_ns
)
SELECT
    m.process AS request_process,
    m.thread AS request_thread,
    m.request,
    w.process,
    w.thread,
    w.start_ns AS wait_ns,
    s.name AS step_name,
    s.start_ns AS step_ns
FROM met AS m
JOIN waits AS w ON w.wait_id = m.wait_id
LEFT JOIN stepped AS s ON s.wait_id = m.wait_id
ORDER BY m.process, m.request, w.start_ns
