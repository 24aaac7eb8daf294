-- binned: file calls by process, thread, op, class of path and piece of the run.  The run is divided into 1,800 equal
-- pieces.  The bytes of a call are spread evenly over the duration of the call.
--   calls    number of calls that began in the piece
--   call_ns  time of all calls within the piece, calls in flight included
--   piece_ns  duration of a piece
-- Calls are summed by first and last piece before the sums are spread over pieces.  For calls over several pieces, the
-- parts in the first and in the last piece are exact; the rest is spread evenly over the pieces between.
WITH extent AS (
    SELECT min(start_ns) AS start_ns, greatest(1, max(end_ns) - min(start_ns)) AS run_ns FROM lives
),
pieces AS (
    SELECT start_ns, CAST(ceil((run_ns + 1) / 1800) AS BIGINT) AS ns FROM extent
),
ended AS (
    SELECT process, thread, op_number, path_class, moved_bytes, start_ns, duration_ns
    FROM file_calls
    WHERE duration_ns IS NOT NULL
    UNION ALL
    SELECT e.process, e.thread, e.op_number, e.path_class, e.moved_bytes, e.start_ns, l.end_ns - e.start_ns
    FROM file_calls AS e
    JOIN lives AS l ON l.process = e.process
    WHERE e.duration_ns IS NULL
),
begun AS (
    SELECT
        e.* EXCLUDE (start_ns, duration_ns),
        greatest(0, e.start_ns - p.start_ns) AS start_ns,
        greatest(1, e.duration_ns) AS duration_ns,
        p.ns
    FROM ended AS e
    CROSS JOIN pieces AS p
),
placed AS (
    SELECT *, start_ns // ns AS first, (start_ns + duration_ns) // ns AS last FROM begun
),
spans_of_pieces AS (
    SELECT
        process,
        thread,
        op_number,
        path_class,
        first,
        last,
        any_value(ns) AS ns,
        count(*) AS calls,
        sum(moved_bytes) AS bytes,
        sum(duration_ns) AS call_ns,
        sum((first + 1) * ns - start_ns) FILTER (WHERE first < last) AS head_ns,
        sum(start_ns + duration_ns - last * ns) FILTER (WHERE first < last) AS tail_ns,
        sum(CAST(moved_bytes AS DOUBLE) * ((first + 1) * ns - start_ns) / duration_ns) FILTER (WHERE first < last)
            AS head_bytes,
        sum(CAST(moved_bytes AS DOUBLE) * (start_ns + duration_ns - last * ns) / duration_ns)
            FILTER (WHERE first < last) AS tail_bytes
    FROM placed
    GROUP BY process, thread, op_number, path_class, first, last
),
spread AS (
    SELECT
        *,
        unnest(range(first, last + 1)) AS bin,
        greatest(1, last - first - 1) AS bins_between
    FROM spans_of_pieces
)
SELECT
    process,
    thread,
    op_number,
    path_class,
    bin,
    any_value(ns) AS piece_ns,
    sum(CASE
        WHEN first = last THEN bytes
        WHEN bin = first THEN head_bytes
        WHEN bin = last THEN tail_bytes
        ELSE (bytes - head_bytes - tail_bytes) / bins_between
    END) AS moved_bytes,
    coalesce(sum(calls) FILTER (WHERE bin = first), 0) AS calls,
    sum(CASE
        WHEN first = last THEN call_ns
        WHEN bin = first THEN head_ns
        WHEN bin = last THEN tail_ns
        ELSE (call_ns - head_ns - tail_ns) / bins_between
    END) AS call_ns
FROM spread
GROUP BY process, thread, op_number, path_class, bin
