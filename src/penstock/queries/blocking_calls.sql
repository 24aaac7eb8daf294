-- blocking_calls: single file calls that blocked the step loop: in a wait of the training stretch, of the
-- worker that owed the batch or of its helpers; in a checkpoint that blocks; or of the thread that takes
-- the steps itself.
--   ns  the part of the call's time in which the step loop was blocked by it
SELECT op_number, file, path_class, moved_bytes, duration_ns, begins, to_ns - from_ns AS ns
FROM inside
WHERE is_own AND is_blocking
UNION ALL
SELECT h.op_number, h.file, h.path_class, h.moved_bytes, h.duration_ns, h.begins, h.ns * f.helped_fit
FROM helped AS h
JOIN fits AS f ON f.stretch_id = h.stretch_id
WHERE h.is_blocking
