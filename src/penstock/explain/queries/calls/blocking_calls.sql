-- blocking_calls: single file calls that blocked the step loop: in a data wait during training, calls of the
-- worker that made the awaited batch and of the worker's helpers; calls in a blocking checkpoint; calls of the
-- step thread itself.
--   waited_ns  upper bound of the time in which storage delayed the calling thread
--   ns       the part of the call's time in which the call blocked the step loop
--   held_ns  as ns; if main processes wait for each other, weighted by the delayed step loops (see shares)
SELECT h.op_number, h.file, h.path_class, h.moved_bytes, h.duration_ns, h.held_ns AS waited_ns,
    h.begins, h.ns * f.fit AS ns,
    h.ns * f.fit * coalesce(u.share, 1) AS held_ns
FROM held AS h
JOIN fits AS f ON f.stretch_id = h.stretch_id
LEFT JOIN held_up AS u ON u.stretch_id = h.stretch_id
WHERE h.is_own AND h.is_blocking
UNION ALL
SELECT h.op_number, h.file, h.path_class, h.moved_bytes, h.duration_ns, h.held_ns, h.begins,
    h.ns * f.helped_fit,
    h.ns * f.helped_fit * coalesce(u.share, 1)
FROM helped AS h
JOIN fits AS f ON f.stretch_id = h.stretch_id
LEFT JOIN held_up AS u ON u.stretch_id = h.stretch_id
WHERE h.is_blocking
