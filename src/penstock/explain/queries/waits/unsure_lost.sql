-- unsure_lost: the loss of the job to time of unknown use (see unsure), as a multiple of the mean over main processes.
--   share  1: main processes do not wait for each other.  Where main processes wait, or may wait, for each other, all
--          wait for the process with the longest time of unknown use in a bin of steps.  The time of unknown use of a
--          process is spread over steps by the input stretches, or, without input stretches, by the rest of each step
WITH totals AS (
    SELECT process, CAST(unfed_ns + maybe_ns + between_ns + coalesce(hidden_ns, 0) AS DOUBLE) AS ns FROM unsure
),
sure AS (
    SELECT o.process, e.step, sum(o.end_ns - o.start_ns) AS ns
    FROM stood AS o
    ASOF JOIN step_stretches AS e ON e.process = o.process AND e.from_ns <= o.start_ns
    WHERE o.is_sure
    GROUP BY o.process, e.step
),
wide AS (
    SELECT i.process, e.step, sum(i.end_ns - i.start_ns) AS ns
    FROM input_time AS i
    ASOF JOIN step_stretches AS e ON e.process = i.process AND e.from_ns <= i.start_ns
    GROUP BY i.process, e.step
    UNION ALL
    SELECT
        e.process,
        e.step,
        greatest(0, e.to_ns - e.from_ns - e.wait_ns - e.save_ns - coalesce(s.ns, 0))
    FROM step_stretches AS e
    LEFT JOIN sure AS s ON s.process = e.process AND s.step = e.step
    WHERE e.process NOT IN (SELECT process FROM input_time)
),
spread AS (
    SELECT
        w.process,
        w.step,
        t.ns * w.ns / nullif(sum(w.ns) OVER (PARTITION BY w.process), 0) AS ns
    FROM wide AS w
    JOIN totals AS t ON t.process = w.process
),
of_each AS (
    SELECT g.generation, (s.step + c.size - 2 - c.shift) // c.size AS bin, s.process, sum(s.ns) AS ns
    FROM spread AS s
    JOIN teams AS g ON g.process = s.process
    CROSS JOIN (
        SELECT coalesce(size, 1) AS size, shift FROM coupling WHERE how IN ('together', 'groups', 'not known')
    ) AS c
    GROUP BY g.generation, (s.step + c.size - 2 - c.shift) // c.size, s.process
),
longest AS (
    SELECT generation, bin, max(ns) AS ns FROM of_each GROUP BY generation, bin
),
counted AS (
    SELECT g.generation, count(*) AS mains
    FROM teams AS g
    WHERE g.process IN (SELECT process FROM step_stretches)
    GROUP BY g.generation
)
SELECT CAST(greatest(1, coalesce(
    (SELECT sum(l.ns * c.mains) FROM longest AS l JOIN counted AS c ON c.generation = l.generation)
    / nullif((SELECT sum(ns) FROM totals), 0),
    1
)) AS DOUBLE) AS share
