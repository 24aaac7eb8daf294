-- standstills: one row per call, other than a file call, in which a thread was blocked for 50 µs or longer.
--   what  the awaited thing.  'accelerator': the accelerator's runtime; 'exchange': other ranks;
--         'compute': a thread pool of a computation; 'interpreter lock'; 'sleep'; 'program': the end of
--         another process; 'network': a socket; 'pipe': a pipe, or a socket that leads to no network
--         (AF_UNIX); 'other thread': all the rest, for example locks, queues and events
--   waker  the thread, in the same process, that ended the standstill; NULL: not known
--   phase  of 'network': the awaited phase (see blocked), or 'back-off': a sleep between a failed try and
--         the retry (see backoffs); in an event loop, a wait ended by the time limit
--   endpoint  of 'network'; NULL: not known
--   is_answered  the call ended without an error (the awaited thing came), or the back-off ended
-- Computing libraries are recognised by name; a wait of a computing library's thread is never for data.
-- PyTorch exchanges data between ranks inside the computing library: a wait in PyTorch's library is for other
-- ranks if the wait was ended by a thread that polls the sockets of the exchange, or by a thread woken by a
-- polling thread (each of gloo's threads runs a single operation).
WITH own AS (
    SELECT process, thread, op, op_group, coalesce(object, '') AS object, descriptor, waker, phase, start_ns,
        duration_ns, errno, regexp_matches(coalesce(object, ''), '^lib(torch|c10)') AS is_torch
    FROM blocked
),
pollers AS (
    SELECT DISTINCT process, thread FROM own WHERE is_torch AND op IN ('poll', 'epoll', 'receive')
),
runners AS (
    SELECT process, thread FROM pollers
    UNION
    SELECT o.process, o.thread
    FROM own AS o
    JOIN pollers AS p ON p.process = o.process AND p.thread = o.waker
    WHERE o.is_torch
),
calls AS (
    SELECT o.process, o.thread, o.op, o.op_group, o.object, o.descriptor, o.waker, o.phase, o.start_ns, o.duration_ns,
        o.errno, o.is_torch AND (o.op IN ('poll', 'epoll', 'receive') OR r.thread IS NOT NULL) AS is_exchange,
        CASE
            WHEN b.to_ns > o.start_ns
                AND (o.op_group = 'sleep' OR (o.op IN ('poll', 'select', 'epoll') AND o.errno = 110))
            THEN b.endpoint
        END AS retried_at
    FROM own AS o
    LEFT JOIN runners AS r ON r.process = o.process AND r.thread = o.waker
    ASOF LEFT JOIN backoffs AS b
        ON b.process = o.process AND b.thread = o.thread AND b.from_ns <= o.start_ns
    UNION ALL
    SELECT e.process, e.thread, o.op, 'wait', '', f.path, NULL,
        CASE e."result" WHEN 3 THEN 'first byte' WHEN 4 THEN 'transfer' END, e.start_ns, e.duration_ns, e.errno,
        false, NULL
    FROM events_raw AS e
    JOIN ops AS o ON o.op_number = e.op_number
    JOIN files AS f ON f.file = e.file
    WHERE o.layer = 'posix' AND o.op_group = 'read'
        AND (f.kind IN ('pipe', 'socket') OR starts_with(f.path, 'anon_inode:'))
        AND coalesce(e.duration_ns, 50000) >= 50000
)
SELECT
    c.process,
    c.thread,
    CASE
        WHEN c.retried_at IS NOT NULL THEN 'network'
        WHEN c.op_group = 'sync' THEN 'accelerator'
        WHEN c.op_group IN ('exchange', 'interpreter lock', 'sleep') THEN c.op_group
        WHEN starts_with(c.descriptor, 'anon_inode:[timerfd') THEN 'sleep'
        WHEN c.op = 'waitpid' THEN 'program'
        WHEN c.is_exchange OR regexp_matches(c.object, '^lib(nccl|gloo|mpi|ucp|ucs|rccl|oneccl)') THEN 'exchange'
        WHEN regexp_matches(
            c.object,
            '^(lib(gomp|iomp|omp|mkl|openblas|scipy_openblas|blis|dnnl|tbb|torch|c10|tensorflow|jax|xla|cuda|'
            || 'cudnn|cublas|cusolver|nvrtc|amdhip|hsa|rocblas|onnxruntime)|_pywrap_tensorflow|xla_extension)'
        ) THEN 'compute'
        WHEN c.descriptor = 'socket:unix' OR starts_with(c.descriptor, 'pipe:') THEN 'pipe'
        WHEN c.op IN ('receive', 'send', 'resolve') OR starts_with(c.descriptor, 'socket:') THEN 'network'
        ELSE 'other thread'
    END AS what,
    CASE
        WHEN c.retried_at IS NOT NULL THEN 'back-off'
        WHEN c.op = 'resolve' THEN 'connect'
        ELSE c.phase
    END AS phase,
    CASE
        WHEN c.retried_at IS NOT NULL THEN c.retried_at
        WHEN c.descriptor LIKE 'socket:_%' THEN substr(c.descriptor, 8)
    END AS endpoint,
    c.waker,
    c.duration_ns IS NOT NULL AND (c.errno = 0 OR c.retried_at IS NOT NULL) AS is_answered,
    c.start_ns,
    coalesce(c.start_ns + c.duration_ns, greatest(l.end_ns, c.start_ns)) AS end_ns
FROM calls AS c
JOIN lives AS l ON l.process = c.process
