-- input_time: the input stretches of the thread that takes the steps, within the training stretch.  From the end
-- of a backward pass to the optimizer's step a loop takes no batch, but clips or exchanges gradients (see stood).
-- The framework of a process without a row does not report computations.
--   is_tight  see input_stretches; cpu_ns  time on a CPU inside the stretch
SELECT
    i.process,
    greatest(i.start_ns, m.first_ns) AS start_ns,
    least(i.end_ns, m.last_ns) AS end_ns,
    i.is_tight,
    i.cpu_ns
FROM input_stretches AS i
JOIN mains AS m ON m.process = i.process AND m.thread = i.thread
WHERE i.end_ns > m.first_ns AND i.start_ns < m.last_ns
    AND NOT (i.began = 'backward ended' AND i.ended = 'optimizer')
