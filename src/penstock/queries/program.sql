-- What was run: the first main process, or the first process where none trains.
SELECT p.command, p.executable, p.folder, p.host, m.process IS NOT NULL AS is_main
FROM processes AS p
LEFT JOIN mains AS m ON m.process = p.process
ORDER BY m.process IS NULL, p.rank NULLS LAST, p.start_ns, p.process
LIMIT 1
