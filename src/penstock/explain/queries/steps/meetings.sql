-- meetings: a row per main process and step in which the thread taking the steps waited for other ranks: in an
-- exchange (see standstills) or a barrier.
--   team  the main process that represents all main processes that met in the last exchange of the step; NULL: no
--         main processes met.  In an all-reduce or a barrier no rank finishes before the last rank arrives, and all
--         ranks finish at about one moment.  So the waits of a team end together, and no wait of the team began after
--         the first wait of the team ended (0.3 ms tolerance: a rank arrives slightly before the rank starts to
--         wait).  Times of different hosts are compared only where the hosts' clocks are known to 2 ms.
WITH told AS (
    SELECT string_split(value, chr(9)) AS words FROM notes WHERE key = 'clock'
),
exact AS (
    SELECT words[1] AS host, max(TRY_CAST(words[4] AS BIGINT)) AS error_ns FROM told GROUP BY words[1]
),
exchanged AS (
    SELECT s.process, s.start_ns, s.end_ns
    FROM standstills AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    WHERE s.what = 'exchange' AND s.is_answered
    UNION ALL
    SELECT s.process, s.start_ns, s.end_ns
    FROM timed_spans AS s
    JOIN mains AS m ON m.process = s.process AND m.thread = s.thread
    WHERE s.kind = 'span' AND s.name = 'barrier' AND s.is_outermost AND s.is_finished
),
lasts AS (
    SELECT
        x.process,
        e.step,
        max(x.end_ns) AS end_ns,
        max(x.start_ns) AS start_ns,
        max(e.to_ns - e.from_ns) AS step_ns
    FROM exchanged AS x
    ASOF JOIN step_stretches AS e ON e.process = x.process AND e.from_ns <= x.start_ns
    WHERE x.start_ns < e.to_ns
    GROUP BY x.process, e.step
),
placed AS (
    SELECT
        l.*,
        CASE WHEN c.error_ns <= 2000000 THEN '' ELSE p.host END AS clock,
        CASE WHEN c.error_ns <= 2000000 THEN c.error_ns ELSE 0 END AS error_ns,
        count(*) OVER (PARTITION BY l.process) AS n
    FROM lasts AS l
    JOIN processes AS p ON p.process = l.process
    LEFT JOIN exact AS c ON c.host = p.host
),
-- Two waits end together if the ends are at most 2 ms apart (a thread may be woken late), or 1/20 of a step.
lined AS (
    SELECT
        *,
        CASE
            WHEN end_ns - lag(end_ns) OVER (PARTITION BY clock, step ORDER BY end_ns, process)
                <= greatest(2000000, step_ns // 20) + 2 * error_ns
            THEN 0
            ELSE 1
        END AS is_new
    FROM placed
),
counted AS (
    SELECT
        *,
        sum(is_new) OVER (
            PARTITION BY clock, step ORDER BY end_ns, process ROWS UNBOUNDED PRECEDING
        ) AS place
    FROM lined
),
gathered AS (
    SELECT
        process,
        step,
        count(*) OVER (PARTITION BY clock, step, place) AS members,
        max(start_ns - error_ns) OVER (PARTITION BY clock, step, place)
            <= min(end_ns + error_ns) OVER (PARTITION BY clock, step, place) + 300000 AS is_one,
        first_value(process) OVER (PARTITION BY clock, step, place ORDER BY n DESC, process) AS first
    FROM counted
)
SELECT process, step, CASE WHEN members >= 2 AND is_one THEN first END AS team
FROM gathered
