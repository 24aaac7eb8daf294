-- blocking_files: by file and op, the part of its calls' time in which the step loop was blocked by
-- them: in a wait of the training stretch by the worker that owed the batch or by its helpers, in a
-- checkpoint that blocks, or because the thread that takes the steps made the call itself.
WITH blocking AS (
    SELECT file, op_number, to_ns - from_ns AS ns FROM inside WHERE is_own AND is_blocking
    UNION ALL
    SELECT h.file, h.op_number, h.ns * f.helped_fit
    FROM helped AS h
    JOIN stretches AS s ON s.stretch_id = h.stretch_id
    JOIN fits AS f ON f.stretch_id = h.stretch_id
    WHERE s.is_blocking
)
SELECT file, op_number, CAST(round(sum(ns)) AS BIGINT) AS ns FROM blocking GROUP BY file, op_number
