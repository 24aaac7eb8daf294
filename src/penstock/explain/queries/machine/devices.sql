-- Bytes read from devices, beside the bytes requested by calls.
--   job_read_bytes  bytes fetched into memory from block devices, NFS and Lustre, including read-ahead and mapped
--               files, as the kernel counts for the program and for every ended process of the program
--               (/proc/self/io); NULL: not sampled
--   disk_read_bytes, disk_written_bytes  by any process, on all block devices that are not built on other block
--               devices
--   asked_bytes  bytes moved by reads of regular files of every class.  If two layers saw the reads of a file, the
--               layer with more bytes counts
--   faulted     page faults of mapped data files in which a thread waited: no call requested the faulted pages
--   accelerators  number of accelerators seen
WITH ends AS (
    SELECT
        kind,
        device,
        quantity,
        arg_max(value, at_ns) - arg_min(value, at_ns) AS value
    FROM system
    WHERE kind IN ('job', 'disk')
    GROUP BY host, kind, device, quantity
),
sums AS (
    SELECT kind, quantity, sum(value) AS value FROM ends GROUP BY kind, quantity
),
asked AS (
    SELECT sum(bytes) AS bytes
    FROM (
        SELECT max(read_bytes) AS bytes FROM file_totals WHERE kind = 'regular' GROUP BY file
    )
)
SELECT
    (SELECT value::BIGINT FROM sums WHERE kind = 'job' AND quantity = 'read_bytes') AS job_read_bytes,
    (SELECT value::BIGINT FROM sums WHERE kind = 'disk' AND quantity = 'read_bytes') AS disk_read_bytes,
    (SELECT value::BIGINT FROM sums WHERE kind = 'disk' AND quantity = 'written_bytes')
        AS disk_written_bytes,
    CAST(coalesce((SELECT bytes FROM asked), 0) AS BIGINT) AS asked_bytes,
    (SELECT CAST(coalesce(sum(major + waited), 0) AS BIGINT) FROM fault_counts
        WHERE path_class = 'data') AS faulted,
    (SELECT count(DISTINCT (host, device)) FROM system WHERE kind = 'accelerator') AS accelerators
