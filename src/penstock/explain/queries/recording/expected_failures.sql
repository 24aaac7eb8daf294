-- Failed calls as in any healthy program (all but failed_calls), by error: the ten errors with the most calls.
SELECT errno, calls - coalesce(in_earnest, 0) AS calls
FROM (
    SELECT CAST(e.errno AS INTEGER) AS errno, count(*) AS calls
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number
    WHERE e.errno > 0 AND o.layer IN ('posix', 'stdio')
    GROUP BY e.errno
) AS a
LEFT JOIN (
    SELECT errno AS number, count(*) AS in_earnest FROM failed_calls GROUP BY errno
) AS b ON b.number = a.errno
WHERE calls > coalesce(in_earnest, 0)
ORDER BY 2 DESC, errno
LIMIT 10
