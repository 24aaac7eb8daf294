-- darshan_renames: the renames that Darshan counts: renames of files known from an earlier call of the process.
WITH renamed AS (
    SELECT e.process, e.file, e.other_file, e.start_ns, e.start_ns + e.duration_ns AS end_ns
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE o.op = 'rename' AND e.errno = 0 AND e.duration_ns IS NOT NULL
),
known AS (
    SELECT e.process, e.file, min(e.start_ns) AS start_ns
    FROM events_raw AS e
    JOIN darshan_kinds AS k ON k.op_number = e.op_number
    WHERE e.errno = 0 AND e.file IN (SELECT file FROM renamed)
    GROUP BY e.process, e.file
)
SELECT r.*
FROM renamed AS r
JOIN known AS k ON k.process = r.process AND k.file = r.file AND k.start_ns < r.start_ns
