-- timed_spans: the spans with an end; a span that had not ended (is_finished false) lasts until the end of
-- its process's life.
--   a, b          NULL until the span ended: both are written at the end
--   is_outermost  begins inside no span of the same name in the thread
WITH ended AS (
    SELECT
        s.process,
        s.thread,
        s.kind,
        s.name,
        s.index,
        CASE WHEN s.duration_ns IS NOT NULL THEN s.a END AS a,
        CASE WHEN s.duration_ns IS NOT NULL THEN s.b END AS b,
        s.start_ns,
        coalesce(s.start_ns + s.duration_ns, greatest(l.end_ns, s.start_ns)) AS end_ns,
        s.duration_ns IS NOT NULL AS is_finished
    FROM spans AS s
    JOIN lives AS l ON l.process = s.process
    WHERE s.kind <> 'account'
)
SELECT
    *,
    start_ns >= coalesce(max(end_ns) OVER (
        PARTITION BY process, thread, kind, name ORDER BY start_ns, end_ns DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), start_ns) AS is_outermost
FROM ended
