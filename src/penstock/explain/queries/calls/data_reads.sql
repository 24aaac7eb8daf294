-- data_reads: finished POSIX reads of data files, empty reads excluded.
SELECT process, thread, file, start_ns, duration_ns, offset_bytes, moved_bytes
FROM file_calls
WHERE op_number IN (SELECT op_number FROM ops WHERE layer = 'posix' AND op_group = 'read' AND is_access)
    AND path_class = 'data'
    AND moved_bytes > 0
    AND duration_ns IS NOT NULL
