-- bounds: the longest time for which storage can have delayed the file calls of a fetch: the duration of the fetch
-- less the CPU time and run-queue delay of the fetch.  One row per stretch of a fetch with calls of the fetch's own
-- thread.
--   low_ns, high_ns  of the duration of a call, the part beyond low_ns and up to high_ns counts.  Run-queue
--              delay is subtracted from the longest calls, because a thread that loses its CPU shows as a long
--              call.  CPU time is subtracted from all calls alike
--   held_ns    the longest possible wait of all calls of the fetch together
--   cached_ns  lower bound of the CPU time inside the calls: copying from memory, looking up names
WITH pieces AS (
    SELECT
        s.fetch_id,
        CASE WHEN i.held_ns > 0 THEN CAST(floor(16 * log2(i.held_ns)) AS INTEGER) END AS bin,
        sum((i.to_ns - i.from_ns) / greatest(1, i.duration_ns)) AS calls,  -- a call cut in two counts once
        sum((i.to_ns - i.from_ns) / greatest(1, i.duration_ns) * i.held_ns) AS ns,
        sum((i.to_ns - i.from_ns) / greatest(1, i.duration_ns) * i.delay_ns) AS known_ns,
        sum(i.to_ns - i.from_ns) AS call_ns
    FROM inside AS i
    JOIN stretches AS s ON s.stretch_id = i.stretch_id
    WHERE i.is_own AND s.kind = 'fetch'
    GROUP BY s.fetch_id, 2
),
sums AS (
    SELECT
        f.fetch_id,
        f.cpu_ns,
        coalesce(f.delay_ns, 0) AS delay_ns,
        f.end_ns - f.start_ns AS length_ns,
        least(f.end_ns - f.start_ns, p.ns) AS held_ns,
        least(f.end_ns - f.start_ns, p.call_ns) AS call_ns,
        p.known_ns
    FROM (
        SELECT fetch_id, sum(ns) AS ns, sum(known_ns) AS known_ns, sum(call_ns) AS call_ns
        FROM pieces
        GROUP BY fetch_id
    ) AS p
    JOIN fetches AS f ON f.fetch_id = p.fetch_id
    WHERE f.cpu_ns IS NOT NULL
),
excess AS (
    SELECT
        *,
        least(held_ns, greatest(0, held_ns + cpu_ns + delay_ns - length_ns)) AS over_ns,
        least(
            held_ns,
            greatest(0, delay_ns - known_ns),
            greatest(0, held_ns + cpu_ns + delay_ns - length_ns)
        ) AS late_ns
    FROM sums
),
from_longest AS (
    SELECT
        p.fetch_id,
        (sum(p.ns) OVER longest - e.late_ns) / sum(p.calls) OVER longest AS level_ns,
        coalesce(lead(p.ns / p.calls) OVER longest, 0) AS next_ns
    FROM pieces AS p
    JOIN excess AS e ON e.fetch_id = p.fetch_id
    WHERE p.bin IS NOT NULL AND p.calls > 0 AND e.late_ns > 0
    WINDOW longest AS (PARTITION BY p.fetch_id ORDER BY p.bin DESC)
),
highs AS (
    SELECT fetch_id, max(level_ns) FILTER (WHERE level_ns >= next_ns) AS high_ns
    FROM from_longest
    GROUP BY fetch_id
),
from_shortest AS (
    SELECT
        fetch_id,
        each_ns,
        (busy_ns - (sum(calls * each_ns) OVER shortest - calls * each_ns))
            / (sum(calls) OVER (PARTITION BY fetch_id) - (sum(calls) OVER shortest - calls)) AS level_ns
    FROM (
        SELECT
            p.fetch_id,
            p.bin,
            p.calls,
            least(p.ns / p.calls, coalesce(h.high_ns, p.ns / p.calls)) AS each_ns,
            e.over_ns - e.late_ns AS busy_ns
        FROM pieces AS p
        JOIN excess AS e ON e.fetch_id = p.fetch_id
        LEFT JOIN highs AS h ON h.fetch_id = p.fetch_id
        WHERE p.bin IS NOT NULL AND p.calls > 0 AND e.over_ns > e.late_ns
    ) AS p
    WINDOW shortest AS (PARTITION BY fetch_id ORDER BY bin)
),
lows AS (
    SELECT fetch_id, max(level_ns) FILTER (WHERE level_ns <= each_ns) AS low_ns
    FROM from_shortest
    GROUP BY fetch_id
)
SELECT
    s.stretch_id,
    coalesce(l.low_ns, 0) AS low_ns,
    h.high_ns,
    e.held_ns - e.over_ns AS held_ns,
    least(e.cpu_ns, greatest(0, e.call_ns - e.held_ns + e.over_ns - e.late_ns - e.known_ns)) AS cached_ns
FROM stretches AS s
JOIN excess AS e ON e.fetch_id = s.fetch_id
LEFT JOIN highs AS h ON h.fetch_id = s.fetch_id
LEFT JOIN lows AS l ON l.fetch_id = s.fetch_id
WHERE s.kind = 'fetch'
