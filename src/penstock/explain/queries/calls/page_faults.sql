-- Major page faults of the fetching threads: a page of a mapped file was not in memory, and the thread waited
-- for the page.  The file is not known.
--   fetches   fetches with an adapter that reports faults;  faulted: fetches with a fault;  faults: the sum of faults
--   blocked_s  data wait in the wall time during which a fetch with faults was neither in a file call nor on
--             a CPU nor waiting for a CPU: an upper bound of the time in faults; a mean over main processes
WITH told AS (
    SELECT f.fetch_id, sum(s.b) AS faults
    FROM spans AS s
    ASOF JOIN fetches AS f
        ON f.process = s.process AND f.thread = s.thread AND f.end_ns <= s.start_ns
    WHERE s.kind = 'span' AND s.name = 'fetch faults'
    GROUP BY f.fetch_id
),
blocked AS (
    SELECT sum(f.blocked_ns) AS ns
    FROM stretches AS s
    JOIN fits AS f ON f.stretch_id = s.stretch_id
    WHERE s.kind = 'fetch' AND s.wait_id IS NOT NULL AND s.is_blocking
        AND s.fetch_id IN (SELECT fetch_id FROM told)
)
SELECT
    (SELECT count(*) FROM fetches WHERE delay_ns IS NOT NULL) AS fetches,
    count(*) AS faulted,
    CAST(coalesce(sum(faults), 0) AS BIGINT) AS faults,
    coalesce((SELECT ns FROM blocked), 0) / 1e9 / greatest(1, (SELECT count(*) FROM mains)) AS blocked_s
FROM told
