-- lane_list: the lanes of the timeline in display order, see lane_threads.
--   role       main: the step thread; worker; other
--   processes  number of processes in the lane: several, if workers were started anew
--   process, thread, pid, tid, name  of the first process; no name if the thread has the name of the process
--   is_main_thread  the first thread of the process
SELECT
    t.lane,
    min(t.process) AS process,
    arg_min(t.thread, t.process) AS thread,
    any_value(t.role) AS role,
    any_value(t.worker) AS worker,
    any_value(t.loader) AS loader,
    any_value(t.nth) AS nth,
    any_value(t.rank) AS rank,
    arg_min(p.pid, t.process) AS pid,
    arg_min(n.tid, t.process) AS tid,
    CASE WHEN bool_and(n.is_main OR n.name <> f.name) THEN arg_min(n.name, t.process) END AS name,
    bool_and(coalesce(n.is_main, false)) AS is_main_thread,
    count(DISTINCT t.process) AS processes,
    any_value(t.all_lanes) AS all_lanes
FROM lane_threads AS t
JOIN processes AS p ON p.process = t.process
LEFT JOIN threads AS n ON n.process = t.process AND n.thread = t.thread
LEFT JOIN (
    SELECT process, any_value(name) AS name FROM threads WHERE is_main GROUP BY process
) AS f ON f.process = t.process
GROUP BY t.lane
