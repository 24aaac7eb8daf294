-- The recorder's notes on blind spots of processes: key, value and the number of processes with the note.  Other notes
-- are excluded here, because other queries report the other notes (machine.sql, storage.sql, recording.sql,
-- fault_totals.sql, residency.sql, endings.sql, deaths.sql, doing.sql, still.sql, ahead.sql, fetch_lines.sql).
SELECT key, value, count(DISTINCT process) AS processes
FROM notes
WHERE key NOT IN ('cpus', 'memory_bytes', 'mount', 'beneath', 'event_cost_ns', 'counters only', 'tier',
    'burst tier', 'drained', 'drain left', 'drain paused', 'clock',
    'checkpointer', 'save', 'stream', 'ended', 'child ended', 'signal sent', 'doing', 'still',
    'loader', 'cpus of process', 'cpu quota', 'cpu throttled', 'ahead', 'ahead file',
    'fetch line')
    AND NOT (key = 'run-queue delay' AND value = 'measured')
    AND NOT starts_with(key, 'page faults') AND NOT starts_with(key, 'resident ')
GROUP BY key, value
ORDER BY processes DESC, key, value
LIMIT 50
