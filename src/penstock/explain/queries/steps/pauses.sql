-- pauses: one row for each stretch in which nothing of a process was recorded, as `penstock window` or
-- `penstock run --paused` asked for.
SELECT process, start_ns, end_ns FROM timed_spans WHERE kind = 'window' AND name = 'paused'
