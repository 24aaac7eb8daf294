-- The job's ranks, as reported by launchers to the processes: the ranks of the largest job known to any process
-- (torchrun below srun numbers ranks separately).
--   size     number of the job's ranks; NULL: no launcher reported the number
--   ranks    number of ranks with a log; missing: the first eight ranks without a log, as text
--   doubled  the first eight ranks, as text, with two simultaneous trainings, neither started by the other
WITH sized AS (
    SELECT max(world_size) AS size FROM processes WHERE rank IS NOT NULL
),
known AS (
    SELECT DISTINCT p.rank FROM processes AS p JOIN sized AS s ON p.world_size = s.size
    WHERE p.rank < s.size
),
missing AS (
    SELECT r.rank
    FROM (SELECT unnest(range(least(size, 1000000))) AS rank FROM sized) AS r
    WHERE r.rank NOT IN (SELECT rank FROM known)
),
twice AS (
    SELECT DISTINCT p.rank
    FROM mains AS m
    JOIN processes AS p ON p.process = m.process
    JOIN lives AS l ON l.process = m.process
    JOIN processes AS q ON q.rank = p.rank AND q.process > p.process
        AND q.world_size IS NOT DISTINCT FROM p.world_size
    JOIN mains AS n ON n.process = q.process
    JOIN lives AS k ON k.process = q.process
    WHERE k.start_ns < l.end_ns AND l.start_ns < k.end_ns
        AND q.parent IS DISTINCT FROM p.process
)
SELECT
    (SELECT size FROM sized) AS size,
    (SELECT count(*) FROM known) AS ranks,
    (SELECT string_agg(CAST(rank AS VARCHAR), ', ' ORDER BY rank) FROM (FROM missing ORDER BY rank LIMIT 8)) AS missing,
    (SELECT string_agg(CAST(rank AS VARCHAR), ', ' ORDER BY rank) FROM (FROM twice ORDER BY rank LIMIT 8)) AS doubled
