-- wait_parts: each data wait, split into what the worker that owed the batch was doing; the parts of a
-- wait sum to the wait.
--   read, write, metadata  inside a file call of that group
--   cpu            in a fetch, outside file calls, on a processor: decoding, augmenting
--   not scheduled  in a fetch, outside file calls, ready to run but without a processor
--   blocked        in a fetch, neither: asleep on something that is no file call
--   idle           in no fetch: it had not been asked for the batch, or nothing was left to do
--   worker start, pass end, hand-over  see stretches
--   not observed   no fetch was recorded, or the fetch never ended
-- A fetch tells its processor time and run-queue delay as a whole; they are spread evenly over its time
-- outside file calls, and shrunk in proportion where their sum exceeds it (a call uses the processor
-- too).
WITH calls AS (
    SELECT
        c.stretch_id,
        s.to_ns - s.from_ns AS length_ns,
        coalesce(sum(c.ns) FILTER (WHERE c.op_group = 'read'), 0) AS read_ns,
        coalesce(sum(c.ns) FILTER (WHERE c.op_group = 'write'), 0) AS write_ns,
        coalesce(sum(c.ns) FILTER (WHERE c.op_group = 'metadata'), 0) AS metadata_ns,
        sum(c.ns) AS call_ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    GROUP BY c.stretch_id, s.from_ns, s.to_ns
),
filled AS (
    -- Calls of one thread do not overlap; should a log say otherwise, the parts still fit the whole.
    SELECT
        s.stretch_id,
        s.kind,
        s.wait_id,
        s.fetch_id,
        s.process = s.main AS is_own,
        s.to_ns - s.from_ns AS length_ns,
        coalesce(c.read_ns, 0) * least(1, c.length_ns / nullif(c.call_ns, 0)) AS read_ns,
        coalesce(c.write_ns, 0) * least(1, c.length_ns / nullif(c.call_ns, 0)) AS write_ns,
        coalesce(c.metadata_ns, 0) * least(1, c.length_ns / nullif(c.call_ns, 0)) AS metadata_ns,
        greatest(0, s.to_ns - s.from_ns - coalesce(c.call_ns, 0)) AS rest_ns
    FROM stretches AS s
    LEFT JOIN calls AS c ON c.stretch_id = s.stretch_id
    WHERE s.fetch_id IS NOT NULL OR s.wait_id IS NOT NULL
),
fetch_shares AS (
    SELECT
        f.fetch_id,
        f.cpu_ns / nullif(greatest(sum(i.rest_ns), f.cpu_ns + coalesce(f.delay_ns, 0)), 0)
            AS cpu_share,
        coalesce(f.delay_ns, 0)
            / nullif(greatest(sum(i.rest_ns), f.cpu_ns + coalesce(f.delay_ns, 0)), 0) AS delay_share
    FROM fetches AS f
    JOIN filled AS i ON i.fetch_id = f.fetch_id
    GROUP BY f.fetch_id, f.cpu_ns, f.delay_ns
),
split AS (
    SELECT
        i.wait_id,
        unnest([
            {'part': 'read', 'ns': i.read_ns},
            {'part': 'write', 'ns': i.write_ns},
            {'part': 'metadata', 'ns': i.metadata_ns},
            {'part': 'cpu', 'ns': i.rest_ns * s.cpu_share},
            {'part': 'not scheduled', 'ns': i.rest_ns * s.delay_share},
            {
                'part': CASE
                    WHEN i.kind IN ('worker start', 'pass end', 'hand-over') THEN i.kind
                    WHEN i.kind = 'gap' AND i.is_own THEN 'hand-over'
                    WHEN i.kind = 'gap' THEN 'idle'
                    WHEN i.kind = 'fetch' AND s.cpu_share IS NOT NULL THEN 'blocked'
                    ELSE 'not observed'
                END,
                'ns': i.rest_ns * greatest(0, 1 - coalesce(s.cpu_share + s.delay_share, 0))
            }
        ]) AS one
    FROM filled AS i
    LEFT JOIN fetch_shares AS s ON s.fetch_id = i.fetch_id
    WHERE i.wait_id IS NOT NULL
)
SELECT wait_id, one.part AS part, sum(one.ns) AS ns
FROM split
WHERE one.ns > 0
GROUP BY wait_id, one.part
