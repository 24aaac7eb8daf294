-- The program of the run: of the first main process; without a main process, the last program of the first
-- process: `#!/usr/bin/env python` starts as env and becomes python.
WITH images AS (
    SELECT *, first_value((host, pid)) OVER (ORDER BY start_ns, process) = (host, pid) AS is_first
    FROM processes
)
SELECT p.command, p.executable, p.folder, p.host, m.process IS NOT NULL AS is_main
FROM images AS p
LEFT JOIN mains AS m ON m.process = p.process
ORDER BY
    m.process IS NULL,
    CASE WHEN m.process IS NULL THEN NOT p.is_first END,
    CASE WHEN m.process IS NULL THEN -p.start_ns END,
    p.rank NULLS LAST, p.start_ns, p.process
LIMIT 1
