-- What the recorder itself noted about a process: key, value and how many processes said so.
SELECT key, value, count(DISTINCT process) AS processes
FROM notes
GROUP BY key, value
ORDER BY processes DESC, key, value
LIMIT 50
