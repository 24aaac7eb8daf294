-- fits: the division of the time of each stretch, so that the parts of a wait or a fetch sum to the whole.
--   fit          the counted share of the time of the thread's own calls (stretch_calls.ns): less than 1 if a log has
--                overlapping calls of a single thread, or if the calls exceed the time left by bounds
--   helped_fit   the counted share of the time of helpers' calls.  A fetch waits for helpers while the fetching
--                thread is in no call, not on a CPU and not waiting for a CPU.  CPU time and run-queue delay are
--                known as sums, so helpers get at most the rest of the fetch, and nothing if the sums are not
--                known.  A pooled wait waits only for helpers, and the known CPU time includes all threads, in
--                calls and outside: in a pooled wait, calls are counted before CPU time
--   rest_ns      the time without calls
--   cpu_share, cached_share, delay_share  shares of rest_ns.  CPU time and delay are known only for the whole fetch:
--                both are spread evenly over the rest of the fetch, and shrunk in proportion if the clocks
--                measured more than the rest.  cached is the CPU time inside file calls, see bounds; cpu
--                is the other CPU time
--   blocked_ns   the remainder of rest_ns
WITH calls AS (
    SELECT stretch_id, sum(ns) AS own_ns, sum(helped_ns) AS helped_ns
    FROM stretch_calls
    GROUP BY stretch_id
),
sums AS (
    SELECT
        s.stretch_id,
        CASE WHEN s.kind = 'pool' THEN -s.wait_id ELSE s.fetch_id END AS whole_id,
        s.to_ns - s.from_ns AS length_ns,
        coalesce(c.own_ns, 0) AS own_ns,
        coalesce(c.helped_ns, 0) AS helped_ns,
        b.held_ns,
        b.cached_ns
    FROM stretches AS s
    LEFT JOIN calls AS c ON c.stretch_id = s.stretch_id
    LEFT JOIN bounds AS b ON b.stretch_id = s.stretch_id
),
filled AS (
    SELECT
        *,
        least(1, length_ns / nullif(own_ns, 0))
            * least(1, coalesce(held_ns / nullif(sum(least(own_ns, length_ns)) OVER whole, 0), 1)) AS fit
    FROM sums
    WINDOW whole AS (PARTITION BY whole_id)
),
rests AS (
    SELECT *, greatest(0, length_ns - own_ns * coalesce(fit, 0)) AS rest_ns FROM filled
),
helpable AS (
    SELECT
        i.whole_id,
        f.cpu_ns,
        coalesce(f.delay_ns, 0) AS delay_ns,
        least(1, greatest(0, sum(i.rest_ns) - f.cpu_ns - coalesce(f.delay_ns, 0))
            / nullif(sum(least(i.helped_ns, i.rest_ns)), 0)) AS helped_share
    FROM rests AS i
    JOIN fetches AS f ON f.fetch_id = i.whole_id
    WHERE f.cpu_ns IS NOT NULL
    GROUP BY i.whole_id, f.cpu_ns, f.delay_ns
    UNION ALL
    SELECT -wait_id, cpu_ns, coalesce(delay_ns, 0), 1 FROM waits WHERE is_pooled
),
fitted AS (
    SELECT
        i.stretch_id,
        i.whole_id,
        i.fit,
        coalesce(h.helped_share, 0) * least(1, i.rest_ns / nullif(i.helped_ns, 0)) AS helped_fit,
        i.rest_ns - coalesce(h.helped_share, 0) * least(i.helped_ns, i.rest_ns) AS rest_ns,
        h.cpu_ns,
        least(h.cpu_ns, coalesce(i.cached_ns, 0)) AS cached_ns,
        h.delay_ns
    FROM rests AS i
    LEFT JOIN helpable AS h ON h.whole_id = i.whole_id
),
shared AS (
    SELECT
        stretch_id,
        coalesce(fit, 0) AS fit,
        coalesce(helped_fit, 0) AS helped_fit,
        rest_ns,
        (cpu_ns - cached_ns) / nullif(greatest(sum(rest_ns) OVER whole, cpu_ns + delay_ns), 0) AS cpu_share,
        cached_ns / nullif(greatest(sum(rest_ns) OVER whole, cpu_ns + delay_ns), 0) AS cached_share,
        delay_ns / nullif(greatest(sum(rest_ns) OVER whole, cpu_ns + delay_ns), 0) AS delay_share
    FROM fitted
    WINDOW whole AS (PARTITION BY whole_id)
)
SELECT
    *,
    -- If the shares sum to 1, blocked_ns is 0: a remainder below 1e-12 is a rounding error.
    CASE
        WHEN coalesce(cpu_share + cached_share + delay_share, 0) < 1 - 1e-12
        THEN rest_ns * (1 - coalesce(cpu_share + cached_share + delay_share, 0))
        ELSE 0
    END AS blocked_ns
FROM shared
