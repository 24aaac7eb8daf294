-- fits: how the time of each stretch of a wait or a fetch is shared out, so that its parts sum to it.
--   fit          of the time of its own calls; less than 1 only where a log says that calls of one
--                thread overlap
--   helped_fit   of the time of helpers' calls: a fetch waits for them while its thread is neither in a
--                call nor on a processor nor waiting for one.  Processor time and run-queue delay are
--                known as sums, so helpers get at most what these leave of the fetch; nothing where they
--                are not known.  A pooled wait waits for nothing else, and the processor time that is
--                known is that of all threads, in calls and outside: calls come first
--   rest_ns      what calls leave
--   cpu_share, delay_share  of rest_ns: a fetch tells both as a whole; they are spread evenly over its
--                rest, and shrunk in proportion where their sum exceeds it (a call uses the processor too)
WITH calls AS (
    SELECT stretch_id, sum(ns) AS own_ns, sum(helped_ns) AS helped_ns
    FROM stretch_calls
    GROUP BY stretch_id
),
filled AS (
    SELECT
        s.stretch_id,
        CASE WHEN s.kind = 'pool' THEN -s.wait_id ELSE s.fetch_id END AS whole_id,
        s.to_ns - s.from_ns AS length_ns,
        coalesce(c.own_ns, 0) AS own_ns,
        coalesce(c.helped_ns, 0) AS helped_ns,
        greatest(0, s.to_ns - s.from_ns - coalesce(c.own_ns, 0)) AS rest_ns
    FROM stretches AS s
    LEFT JOIN calls AS c ON c.stretch_id = s.stretch_id
    WHERE s.fetch_id IS NOT NULL OR s.wait_id IS NOT NULL
),
helpable AS (
    SELECT
        i.whole_id,
        f.cpu_ns,
        coalesce(f.delay_ns, 0) AS delay_ns,
        least(1, greatest(0, sum(i.rest_ns) - f.cpu_ns - coalesce(f.delay_ns, 0))
            / nullif(sum(least(i.helped_ns, i.rest_ns)), 0)) AS helped_share
    FROM filled AS i
    JOIN fetches AS f ON f.fetch_id = i.whole_id
    WHERE f.cpu_ns IS NOT NULL
    GROUP BY i.whole_id, f.cpu_ns, f.delay_ns
    UNION ALL
    SELECT -wait_id, cpu_ns, 0, 1 FROM waits WHERE is_pooled
),
fitted AS (
    SELECT
        i.stretch_id,
        i.whole_id,
        least(1, i.length_ns / nullif(i.own_ns, 0)) AS fit,
        coalesce(h.helped_share, 0) * least(1, i.rest_ns / nullif(i.helped_ns, 0)) AS helped_fit,
        i.rest_ns - coalesce(h.helped_share, 0) * least(i.helped_ns, i.rest_ns) AS rest_ns,
        h.cpu_ns,
        h.delay_ns
    FROM filled AS i
    LEFT JOIN helpable AS h ON h.whole_id = i.whole_id
)
SELECT
    stretch_id,
    coalesce(fit, 0) AS fit,
    coalesce(helped_fit, 0) AS helped_fit,
    rest_ns,
    cpu_ns / nullif(greatest(sum(rest_ns) OVER whole, cpu_ns + delay_ns), 0) AS cpu_share,
    delay_ns / nullif(greatest(sum(rest_ns) OVER whole, cpu_ns + delay_ns), 0) AS delay_share
FROM fitted
WINDOW whole AS (PARTITION BY whole_id)
