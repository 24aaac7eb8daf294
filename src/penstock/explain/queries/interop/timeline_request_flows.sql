-- A row per awaited request and data wait: the beginning of the wait, and of the first step that ended later.
-- An awaited request was under way during the wait, and began during the owed fetch, in the thread of the fetch or in
-- a thread without fetches (an event loop, a pool).  A request outside known fetches belongs to the last wait
-- of the process without a known fetch.
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
begun AS (
    SELECT r.process, r.thread, r.request, r.start_ns, r.end_ns, f.fetch_id, f.end_ns AS fetched_ns
    FROM told AS r
    ASOF JOIN fetches AS f ON f.process = r.process AND f.thread = r.thread AND f.start_ns <= r.start_ns
    WHERE r.is_fetching
    UNION ALL
    SELECT r.process, r.thread, r.request, r.start_ns, r.end_ns, f.fetch_id, f.end_ns
    FROM told AS r
    ASOF JOIN fetches AS f ON f.process = r.process AND f.start_ns <= r.start_ns
    WHERE NOT r.is_fetching
),
unowed AS (
    SELECT w.wait_id, w.process, w.start_ns, w.end_ns
    FROM waits AS w
    LEFT JOIN owed_fetches AS o ON o.wait_id = w.wait_id
    WHERE o.wait_id IS NULL
),
met AS (
    SELECT o.wait_id, b.process, b.thread, b.request
    FROM begun AS b
    JOIN owed_fetches AS o ON o.fetch_id = b.fetch_id
    JOIN waits AS w ON w.wait_id = o.wait_id
    WHERE b.start_ns < b.fetched_ns AND b.end_ns > w.start_ns AND b.start_ns < w.end_ns
    UNION ALL
    SELECT u.wait_id, r.process, r.thread, r.request
    FROM told AS r
    ASOF JOIN unowed AS u ON u.process = r.process AND u.start_ns < r.end_ns
    WHERE u.end_ns > r.start_ns
),
step_spans AS (
    SELECT
        process, thread, name, start_ns, end_ns,
        coalesce(lag(end_ns) OVER (PARTITION BY process, thread ORDER BY end_ns), -1) AS before_ns
    FROM timed_spans
    WHERE kind = 'step'
),
stepped AS (
    SELECT w.wait_id, s.name, s.start_ns
    FROM waits AS w
    ASOF JOIN step_spans AS s ON s.process = w.process AND s.thread = w.thread AND s.before_ns <= w.start_ns
    WHERE s.end_ns > w.start_ns
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
