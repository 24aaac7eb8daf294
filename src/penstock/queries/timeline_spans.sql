-- The stretches of a timeline that overlap from_ns..to_ns, by thread and start.  A stretch in flight
-- lasts until its process's last sign of life.
--   number  of the step or batch; of a data wait, of the batch that came
--   cpu_ns, delay_ns  of fetches and waits: processor time inside, time ready without a processor
WITH shown AS (
    SELECT
        s.process,
        s.thread,
        s.kind,
        s.name,
        s.index,
        s.a,
        s.b,
        s.start_ns,
        coalesce(s.start_ns + s.duration_ns, greatest(l.end_ns, s.start_ns)) AS end_ns,
        s.duration_ns IS NULL AS is_in_flight
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    WHERE s.kind <> 'span' OR s.name NOT IN ('fetch delay', 'delivered')
)
SELECT
    s.process,
    s.thread,
    s.kind,
    s.name,
    coalesce(w.index, s.index) AS number,
    CASE WHEN s.kind = 'span' AND s.name IN ('data wait', 'fetch') AND NOT s.is_in_flight THEN s.b END
        AS cpu_ns,
    f.delay_ns,
    s.start_ns,
    s.end_ns,
    s.is_in_flight
FROM shown AS s
LEFT JOIN waits AS w
    ON s.kind = 'span' AND s.name = 'data wait' AND w.process = s.process AND w.thread = s.thread
        AND w.start_ns = s.start_ns
LEFT JOIN fetches AS f
    ON s.kind = 'span' AND s.name = 'fetch' AND f.process = s.process AND f.thread = s.thread
        AND f.start_ns = s.start_ns
WHERE s.start_ns < $to_ns
    AND s.end_ns >= $from_ns
    AND s.process IN (SELECT process FROM timeline_family)
ORDER BY s.process, s.thread, s.start_ns, s.end_ns DESC
