-- main_reads: one row per main process with reads of data files, by the process itself or by its loader's workers;
-- bytes of the layer with the most bytes.
SELECT main, max(bytes) AS bytes
FROM (
    SELECT r.main, o.layer, sum(t.moved_bytes) AS bytes
    FROM op_totals AS t
    JOIN ops AS o ON o.op_number = t.op_number
    JOIN roles AS r ON r.process = t.process
    WHERE o.op_group = 'read' AND o.is_access AND t.path_class = 'data' AND r.main IS NOT NULL
    GROUP BY r.main, o.layer
)
GROUP BY main
