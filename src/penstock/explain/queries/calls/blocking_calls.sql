-- blocking_calls: single file calls that blocked the step loop: in a wait of the training stretch, of the
-- worker that owed the batch or of its helpers; in a checkpoint that blocks; or of the thread that takes
-- the steps itself.
--   waited_ns  the longest time for which storage may have delayed the calling thread
--   ns       the part of the call's time in which the call blocked the step loop
--   held_ns  as ns; where main processes wait for each other, weighted by the step loops delayed (see shares)
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
