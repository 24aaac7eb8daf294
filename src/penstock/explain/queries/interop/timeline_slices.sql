-- Number of slices drawn when calls shorter than pixel_ns are gathered: see timeline_calls.
SELECT
    (SELECT count(*) FROM timeline_shown WHERE duration_ns >= $pixel_ns)
    + (SELECT count(*) FROM (
        SELECT DISTINCT process, thread, start_ns // $pixel_ns
        FROM timeline_shown
        WHERE duration_ns < $pixel_ns
    )) AS slices
