-- timed_spans: the spans with an end; an unfinished span (is_finished false) lasts until the end of the
-- process's life.
--   a, b          NULL in an unfinished span: both are written at the end
--   is_outermost  the span begins inside no span of equal kind and name in the thread
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
