-- pauses: one row for each stretch without a recording of a process, as asked by `penstock window` or
-- `penstock run --paused`.
SELECT process, start_ns, end_ns FROM timed_spans WHERE kind = 'window' AND name = 'paused'
