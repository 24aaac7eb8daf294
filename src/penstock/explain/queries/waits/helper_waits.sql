-- helper_waits: data waits of the threads of a main process other than the step thread.  A helper thread feeds
-- the steps, as a rule through a queue: the helper's waits may explain an empty queue, but are not waits of
-- the step loop (waits).
--   index, iterator, is_start  as in waits
--   in_wall  the wait ended after the training began, and began before the training ended
SELECT
    s.process,
    s.thread,
    s.a AS iterator,
    s.index,
    s.start_ns,
    s.end_ns,
    s.is_finished,
    s.name = 'loader start' AS is_start,
    s.end_ns > m.first_ns AND s.start_ns < m.last_ns AS in_wall
FROM timed_spans AS s
JOIN mains AS m ON m.process = s.process AND m.thread <> s.thread
WHERE s.kind = 'span' AND s.name IN ('data wait', 'loader start', 'loader end') AND s.is_outermost
