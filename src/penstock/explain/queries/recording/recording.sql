-- The extent of the recording, the overhead of the recorder, and the missing data: a single row.
--   processes    a process counts once, even if exec replaced the program; each process without a pid counts
--                separately
--   life_s       from the first process's start to the last process's end
--   folded, lost, unseen_calls  events kept only in counters; events kept only as a count; calls that
--                start work done elsewhere (io_uring, cuFile)
--   killed_seen  killed processes with a known time of the end: `penstock run` saw the end
--   killed_mains  killed main processes; if no process trains, the first process, if killed
--   later_mains  main processes begun after the end of another main process: another job in the same folder
--   nameless_spans  spans with a lost name text: no number includes nameless spans
--   mapped_files, mapped_bytes  data files mapped into memory: reads through a mapping make no call
--   counters_only, imported_lacks  for an imported run: the reason why single calls are missing, and the gaps
--                marked by the recording tool itself; NULL: none
--   has_events   single calls are recorded
--   in_flight    calls without a return before the end of the log
--   unread       unreadable logs, and empty files (another program may have cut the file); a log with an
--                empty header does not count: the process died at the start
--   orphans      loader workers without a log of the training process
--   lives_s      from the start of each process to its end, summed
--   starts, starts_s  processes with a start of the recorder, and the sum of the start durations; a
--                forked process is recorded without a start, and a life begins after the start
--   trained_starts  of starts, the programs that the training or a loader's worker started
--   own_calls, own_s  system calls of the recorder itself after each start, and their duration
SELECT
    (SELECT count(DISTINCT (host, coalesce(pid, -1 - process))) FROM processes) AS processes,
    (SELECT count(DISTINCT host) FROM processes) AS hosts,
    (SELECT count(*) FROM roles WHERE role = 'worker') AS workers,
    (SELECT (max(end_ns) - min(start_ns)) / 1e9 FROM lives) AS life_s,
    (SELECT CAST(coalesce(sum(calls), 0) AS BIGINT) FROM process_totals) AS calls,
    (SELECT CAST(coalesce(sum(folded_events), 0) AS BIGINT) FROM processes) AS folded,
    (SELECT CAST(coalesce(sum(lost_events), 0) AS BIGINT) FROM processes) AS lost,
    (SELECT CAST(coalesce(sum(unseen_calls), 0) AS BIGINT) FROM processes) AS unseen_calls,
    (SELECT count(*) FROM processes WHERE is_torn) AS torn,
    (SELECT CAST(coalesce(sum(damaged_units), 0) AS BIGINT) FROM processes) AS damaged_units,
    (SELECT count(*) FROM processes WHERE state = 'running') AS running,
    (SELECT count(*) FROM processes WHERE state = 'failed') AS failed,
    (SELECT count(*) FROM processes WHERE state = 'killed') AS killed,
    (SELECT count(*) FROM processes WHERE state = 'killed'
        AND NOT contains(coalesce(reason, ''), 'when is not known')) AS killed_seen,
    (SELECT count(*) FROM processes WHERE state = 'killed' AND (
        process IN (SELECT process FROM mains)
        OR process = (SELECT arg_min(process, start_ns) FROM processes)
            AND NOT EXISTS (SELECT 1 FROM mains)
    )) AS killed_mains,
    (SELECT count(*) FROM mains AS m JOIN lives AS l ON l.process = m.process WHERE EXISTS (
        FROM mains AS o JOIN lives AS e ON e.process = o.process WHERE e.end_ns < l.start_ns
    )) AS later_mains,
    (SELECT count(*) FROM processes WHERE state = 'unknown') AS unknown_ends,
    (SELECT count(*) FROM unseen) AS unseen_programs,
    (SELECT count(*) FROM spans WHERE kind = 'span' AND name IS NULL) AS nameless_spans,
    (SELECT count(DISTINCT c.file) FROM calls AS c JOIN files AS f ON f.file = c.file
        WHERE c.op_number IN (SELECT op_number FROM ops WHERE op = 'mmap') AND f.path_class = 'data')
        AS mapped_files,
    (SELECT coalesce(sum(t.asked_bytes), 0)::BIGINT
        FROM op_totals AS t JOIN ops AS o ON o.op_number = t.op_number
        WHERE o.op = 'mmap' AND t.path_class = 'data') AS mapped_bytes,
    (SELECT count(*) FROM file_calls WHERE duration_ns IS NULL) AS in_flight,
    (SELECT max(attach_ns) / 1e9 FROM processes) AS attach_s,
    (SELECT max(slots) FROM processes) AS slots,
    (SELECT median(TRY_CAST(value AS DOUBLE)) FROM notes WHERE key = 'event_cost_ns') AS event_cost_ns,
    (SELECT count(*) FROM fetches WHERE delay_ns IS NULL AND cpu_ns IS NOT NULL) AS fetches_without_delay,
    (SELECT any_value(value) FROM notes WHERE key = 'counters only') AS counters_only,
    (SELECT string_agg(DISTINCT value, '; ' ORDER BY value) FROM notes WHERE key = 'imported incomplete')
        AS imported_lacks,
    (SELECT count(*) > 0 FROM (FROM events_raw LIMIT 1)) AS has_events,
    (SELECT count(*) FROM notes WHERE key = 'skipped' AND NOT contains(value, ': empty, ')) AS unread,
    (SELECT count(*) FROM roles WHERE role = 'worker'
        AND (main IS NULL OR main NOT IN (SELECT process FROM mains))) AS orphans,
    (SELECT sum(end_ns - start_ns) / 1e9 FROM lives) AS lives_s,
    (SELECT sum(attach_ns) / 1e9 FROM processes) AS starts_s,
    (SELECT count(*) FROM processes WHERE attach_ns > 0) AS starts,
    (SELECT count(*) FROM processes WHERE attach_ns > 0 AND process IN (
        SELECT s.process FROM started AS s JOIN roles AS r ON r.process = s.starter WHERE r.role <> 'other'
    )) AS trained_starts,
    (SELECT CAST(sum(own_calls) AS BIGINT) FROM processes) AS own_calls,
    (SELECT sum(own_ns) / 1e9 FROM processes) AS own_s
