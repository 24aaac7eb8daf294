-- Seconds in which POSIX calls on data files blocked the step loop, by kind of call: read, metadata, write; means over
-- main processes.  If main processes wait for each other, the delay of the slowest process counts for all (see
-- shares).  The seconds are the upper limit of the gain from another tier, or from other hints.
SELECT o.op_group, CAST(sum(b.held_ns) AS DOUBLE) / 1e9 / greatest(1, (SELECT count(*) FROM mains)) AS s
FROM blocking_files AS b
JOIN ops AS o ON o.op_number = b.op_number
LEFT JOIN file_kinds AS k ON k.file = b.file
WHERE o.layer = 'posix'
    AND b.file IS NOT NULL
    AND coalesce(k.path_class, 'data') = 'data'
    AND coalesce(k.is_file, true)
GROUP BY o.op_group
ORDER BY s DESC, o.op_group
