-- stage_reads: the fetching thread's wait in calls on data files, by batch and file.
SELECT s.fetch_id, i.file, CAST(round(sum(i.ns * f.fit)) AS BIGINT) AS ns
FROM held AS i
JOIN stretches AS s ON s.stretch_id = i.stretch_id
JOIN fits AS f ON f.stretch_id = i.stretch_id
WHERE i.is_own AND s.kind = 'fetch' AND i.file IS NOT NULL AND i.path_class = 'data'
    AND i.op_number IN (SELECT op_number FROM ops WHERE layer = 'posix')
GROUP BY s.fetch_id, i.file
