-- cpu_unknown: time that counts as waiting, although the thread may have had no CPU: the kernel reports no run-queue
-- delay, or the log's recorder did not ask for the delay.  Seconds are means over main processes.
--   call_s  time in blocking file calls of 1 ms and more, outside fetches with a known delay
--   waits   number of pooled waits without a known delay: blocked includes time without a CPU
WITH asked AS (
    SELECT count(*) > 0 AS is_told FROM notes WHERE key = 'run-queue delay' AND value = 'measured'
),
counted AS (
    SELECT sum(h.ns * f.fit) AS ns
    FROM held AS h
    JOIN fits AS f ON f.stretch_id = h.stretch_id
    JOIN stretches AS s ON s.stretch_id = h.stretch_id
    LEFT JOIN fetches AS x ON x.fetch_id = s.fetch_id
    WHERE h.is_own AND h.is_blocking AND h.duration_ns >= 1000000 AND x.delay_ns IS NULL
    UNION ALL
    SELECT sum(h.ns * f.helped_fit)
    FROM helped AS h
    JOIN fits AS f ON f.stretch_id = h.stretch_id
    WHERE h.is_blocking AND h.duration_ns >= 1000000
)
SELECT
    CASE
        WHEN (SELECT is_told FROM asked) THEN 0
        ELSE coalesce((SELECT sum(ns) FROM counted), 0) / 1e9 / greatest(1, (SELECT count(*) FROM mains))
    END AS call_s,
    (SELECT count(*) FROM waits WHERE is_pooled AND cpu_ns IS NOT NULL AND delay_ns IS NULL) AS waits
