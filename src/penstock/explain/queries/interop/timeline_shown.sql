-- timeline_shown: the calls of a timeline that overlap from_ns..to_ns, cut to the range, and the page faults of mapped
-- files that waited (see file_waits).  A page fault is not a call, but stops the thread like a call.  duration_ns is
-- the duration of the whole call.  A call in flight lasts until the process's last sign of life.
SELECT
    e.process,
    e.thread,
    e.op_number,
    e.file,
    greatest(e.start_ns, getvariable('from_ns')) AS start_ns,
    least(
        coalesce(e.start_ns + e.duration_ns, greatest(l.end_ns, e.start_ns)), getvariable('to_ns')
    ) AS end_ns,
    coalesce(e.duration_ns, greatest(l.end_ns - e.start_ns, 0)) AS duration_ns,
    e.duration_ns IS NULL AS is_in_flight,
    e.offset_bytes,
    e.asked_bytes,
    e.moved_bytes,
    e.errno
FROM events_raw AS e
JOIN lives AS l ON l.process = e.process
WHERE e.start_ns < getvariable('to_ns')
    AND coalesce(e.start_ns + e.duration_ns, greatest(l.end_ns, e.start_ns)) >= getvariable('from_ns')
    AND e.process IN (SELECT process FROM timeline_family)
    AND e.op_number IN (SELECT op_number FROM ops WHERE layer IN ('posix', 'stdio', 'process'))
UNION ALL
SELECT
    w.process,
    w.thread,
    w.op_number,
    w.file,
    greatest(w.start_ns, getvariable('from_ns')),
    least(w.start_ns + w.duration_ns, getvariable('to_ns')),
    w.duration_ns,
    false,
    w.offset_bytes,
    0,
    0,
    0
FROM waited_faults AS w
WHERE w.start_ns < getvariable('to_ns')
    AND w.start_ns + w.duration_ns >= getvariable('from_ns')
    AND w.process IN (SELECT process FROM timeline_family)
