-- pauses: a row for each stretch in which a process was not recorded, as requested by `penstock window` or
-- `penstock run --paused`.
SELECT process, start_ns, end_ns FROM timed_spans WHERE kind = 'window' AND name = 'paused'
