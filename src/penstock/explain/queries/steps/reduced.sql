-- A run by rank, in the form that penstock.explain.reduce keeps: sums, to be added to the sums of other ranks'
-- runs.  Times are whole ns.  A column unused by a kind of row is NULL.
--   rank     a main process: its values from queries/training and ranks
--   about    the run's other counts, one row
--   op       calls by op: the sums of queries/operations
--   latency  calls by op and bin of 1/16 octave
--   part     parts of waits (before: of waits for the first batch) and of checkpoints, by main process
--            (command: the main process's name as in rank); unfed: see training
--   step     see step_bins: name is the generation, width the size, duration_ns 1000 * d_us, waits mains,
--            calls whole, asked_bytes hi, moved_bytes lo, max_ns most_ns
--   file     regular files other than libraries: size, bytes read by ranks, number of reading ranks, whether
--            a rank wrote the file
--   heat     data wait by rank and bin of 2^width ns of the time since 1970
WITH own AS (
    SELECT s.process, sum(c.ns * f.fit) AS ns
    FROM stretch_calls AS c
    JOIN stretches AS s ON s.stretch_id = c.stretch_id
    JOIN fits AS f ON f.stretch_id = c.stretch_id
    WHERE s.kind = 'step'
    GROUP BY s.process
),
waited AS (
    SELECT process, sum(end_ns - start_ns) AS ns, count(index) AS waits
    FROM waits
    WHERE in_wall
    GROUP BY process
),
saved AS (
    SELECT process, sum(end_ns - start_ns) AS ns FROM saves WHERE blocks GROUP BY process
),
by_rank AS (
    SELECT c.file, coalesce(p.rank, -1 - p.process) AS reader, o.layer, sum(c.moved_bytes) AS bytes
    FROM calls AS c
    JOIN ops AS o ON o.op_number = c.op_number
    JOIN processes AS p ON p.process = c.process
    WHERE o.op_group = 'read' AND o.is_access
        AND c.file IN (SELECT file FROM files WHERE path_class IN ('data', 'output') AND kind = 'regular')
    GROUP BY ALL
    HAVING sum(c.moved_bytes) > 0
),
readers AS (
    SELECT file, reader, max(bytes) AS bytes FROM by_rank GROUP BY file, reader
),
files_of AS (
    SELECT file, count(*) AS readers, sum(bytes) AS bytes FROM readers GROUP BY file
),
width AS (
    SELECT CAST(greatest(20, ceil(log2((max(end_ns) - min(start_ns) + 1) / 64))) AS INTEGER) AS width
    FROM lives
),
pieces AS (
    SELECT
        w.process,
        getvariable('start_unix_ns') + w.start_ns AS from_ns,
        getvariable('start_unix_ns') + w.end_ns AS to_ns,
        x.width,
        CAST(1 AS BIGINT) << x.width AS ns
    FROM waits AS w
    CROSS JOIN width AS x
),
heat AS (
    SELECT
        process,
        width,
        bin,
        sum(greatest(0, least(to_ns, (bin + 1) * ns) - greatest(from_ns, bin * ns))) AS wait_ns
    FROM (SELECT *, unnest(range(from_ns // ns, to_ns // ns + 1)) AS bin FROM pieces)
    GROUP BY process, width, bin
),
block AS (
    SELECT process, sum(to_ns - from_ns) AS ns FROM stretches WHERE kind = 'checkpoint' GROUP BY process
),
main_names AS (
    SELECT
        m.process,
        p.host || ' ' || CAST(p.pid AS VARCHAR) || ' '
            || CAST(getvariable('start_unix_ns') + p.start_ns AS VARCHAR) AS name
    FROM mains AS m
    JOIN processes AS p ON p.process = m.process
)
SELECT
    'rank' AS kind,
    p.rank,
    p.world_size,
    p.host,
    p.host || ' ' || CAST(p.pid AS VARCHAR) || ' '
        || CAST(getvariable('start_unix_ns') + p.start_ns AS VARCHAR) AS name,
    p.command,
    p.executable,
    p.folder,
    CAST(m.steps AS BIGINT) AS steps,
    CAST(m.wall_ns AS BIGINT) AS wall_ns,
    CAST(coalesce(w.ns, 0) AS BIGINT) AS wait_ns,
    CAST(coalesce(w.waits, 0) AS BIGINT) AS waits,
    CAST(coalesce(s.ns, 0) AS BIGINT) AS save_ns,
    CAST(b.ns AS BIGINT) AS barrier_ns,
    CAST(round(coalesce(o.ns, 0)) AS BIGINT) AS duration_ns,
    CAST(coalesce(r.bytes, 0) AS BIGINT) AS moved_bytes
FROM mains AS m
JOIN processes AS p ON p.process = m.process
LEFT JOIN waited AS w ON w.process = m.process
LEFT JOIN saved AS s ON s.process = m.process
LEFT JOIN barriers AS b ON b.process = m.process
LEFT JOIN own AS o ON o.process = m.process
LEFT JOIN main_reads AS r ON r.main = m.process
UNION ALL BY NAME
SELECT 'about' AS kind, unnest(['processes', 'workers', 'folded', 'lost', 'unseen_calls', 'torn',
        'damaged_units', 'running', 'failed', 'killed', 'unknown_ends', 'calls']) AS name,
    unnest([
        (SELECT count(DISTINCT (host, coalesce(pid, -1 - process))) FROM processes),
        (SELECT count(*) FROM roles WHERE role = 'worker'),
        (SELECT coalesce(sum(folded_events), 0) FROM processes),
        (SELECT coalesce(sum(lost_events), 0) FROM processes),
        (SELECT coalesce(sum(unseen_calls), 0) FROM processes),
        (SELECT count(*) FROM processes WHERE is_torn),
        (SELECT coalesce(sum(damaged_units), 0) FROM processes),
        (SELECT count(*) FROM processes WHERE state = 'running'),
        (SELECT count(*) FROM processes WHERE state = 'failed'),
        (SELECT count(*) FROM processes WHERE state = 'killed'),
        (SELECT count(*) FROM processes WHERE state = 'unknown'),
        (SELECT coalesce(sum(calls), 0) FROM process_totals)
    ])::BIGINT AS calls
UNION ALL BY NAME
SELECT
    'op' AS kind,
    o.layer,
    o.op AS name,
    CAST(sum(t.calls) AS BIGINT) AS calls,
    CAST(sum(t.errors) AS BIGINT) AS errors,
    CAST(sum(t.asked_bytes) AS BIGINT) AS asked_bytes,
    CAST(CASE WHEN any_value(o.is_access) THEN sum(t.moved_bytes) ELSE 0 END AS BIGINT) AS moved_bytes,
    CAST(sum(t.duration_ns) AS BIGINT) AS duration_ns,
    CAST(max(t.max_duration_ns) AS BIGINT) AS max_ns
FROM op_totals AS t
JOIN ops AS o ON o.op_number = t.op_number
WHERE t.path_class <> 'other than files' AND o.layer IN ('posix', 'stdio')
GROUP BY o.layer, o.op
UNION ALL BY NAME
SELECT 'latency' AS kind, o.layer, o.op AS name, b.bin, CAST(sum(b.calls) AS BIGINT) AS calls
FROM call_bins AS b
JOIN ops AS o ON o.op_number = b.op_number
WHERE o.layer IN ('posix', 'stdio')
GROUP BY o.layer, o.op, b.bin
UNION ALL BY NAME
SELECT
    'part' AS kind,
    CASE WHEN w.in_wall THEN 'wait' ELSE 'before' END AS layer,
    p.part AS name,
    k.name AS command,
    CAST(round(sum(p.ns)) AS BIGINT) AS duration_ns
FROM wait_parts AS p
JOIN waits AS w ON w.wait_id = p.wait_id
JOIN main_names AS k ON k.process = w.process
WHERE w.in_wall OR NOT w.is_start
GROUP BY w.in_wall, p.part, k.name
UNION ALL BY NAME
SELECT 'part' AS kind, 'save' AS layer, c.op_group AS name, k.name AS command,
    CAST(round(sum(c.ns * f.fit)) AS BIGINT) AS duration_ns
FROM stretch_calls AS c
JOIN stretches AS s ON s.stretch_id = c.stretch_id
JOIN fits AS f ON f.stretch_id = c.stretch_id
JOIN main_names AS k ON k.process = s.process
WHERE s.kind = 'checkpoint'
GROUP BY c.op_group, k.name
UNION ALL BY NAME
SELECT 'part' AS kind, 'save' AS layer, 'block' AS name, k.name AS command, CAST(b.ns AS BIGINT) AS duration_ns
FROM block AS b
JOIN main_names AS k ON k.process = b.process
WHERE b.ns > 0
UNION ALL BY NAME
SELECT
    'step' AS kind,
    CAST(generation AS VARCHAR) AS name,
    CAST(size AS INTEGER) AS width,
    CAST(bin AS BIGINT) AS bin,
    CAST(mains AS BIGINT) AS waits,
    CAST(whole AS BIGINT) AS calls,
    d_us * 1000 AS duration_ns,
    hi AS asked_bytes,
    lo AS moved_bytes,
    stall_ns AS wait_ns,
    most_ns AS max_ns,
    least_ns
FROM step_bins
UNION ALL BY NAME
SELECT
    'part' AS kind,
    'unfed' AS layer,
    'time' AS name,
    CAST(coalesce(sum(unfed_steps), 0) AS BIGINT) AS calls,
    CAST(coalesce(sum(unfed_ns + maybe_ns + between_ns + coalesce(hidden_ns, 0)), 0) AS BIGINT) AS duration_ns
FROM unsure
UNION ALL BY NAME
SELECT
    'file' AS kind,
    f.path AS name,
    CAST(r.readers AS BIGINT) AS calls,
    CAST(r.bytes AS BIGINT) AS moved_bytes,
    f.size_bytes AS asked_bytes,
    CAST(f.path_class = 'output' AS BIGINT) AS errors
FROM files AS f
LEFT JOIN files_of AS r ON r.file = f.file
WHERE f.kind = 'regular' AND (r.file IS NOT NULL OR f.path_class = 'output')
UNION ALL BY NAME
SELECT 'heat' AS kind, p.rank, p.host,
    p.host || ' ' || CAST(p.pid AS VARCHAR) || ' '
        || CAST(getvariable('start_unix_ns') + p.start_ns AS VARCHAR) AS name,
    h.width, CAST(h.bin AS BIGINT) AS bin, CAST(h.wait_ns AS BIGINT) AS wait_ns
FROM heat AS h
JOIN processes AS p ON p.process = h.process
WHERE h.wait_ns > 0
