-- calls: finished calls of the POSIX and STDIO layers, for sums: a row per single call, and rows for calls kept only
-- in counters; so sums are exact even past the trace budget.
SELECT
    process,
    file,
    op_number,
    1 AS calls,
    CAST(errno <> 0 AS INTEGER) AS errors,
    asked_bytes,
    moved_bytes,
    duration_ns,
    duration_ns AS max_duration_ns,
    start_ns + duration_ns AS last_ns,
    CAST(moved_bytes = 0 AND errno = 0 AS INTEGER) AS empty
FROM events_raw
WHERE duration_ns IS NOT NULL
UNION ALL
SELECT
    process,
    file,
    op_number,
    calls,
    errors,
    asked_bytes,
    moved_bytes,
    duration_ns,
    max_duration_ns,
    last_ns,
    empty
FROM folded_raw
