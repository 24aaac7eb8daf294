-- Bytes that came from devices, beside the bytes requested by calls.
--   job_read_bytes  by the kernel's account (/proc/self/io) of the program and of every process of the
--               program that has ended: bytes fetched into memory, with read-ahead and mapped files,
--               from block devices, NFS and Lustre; NULL: not sampled
--   disk_read_bytes, disk_written_bytes  of all block devices that lie on no other, by any process
--   network_received_bytes  of all interfaces but the loopback
--   asked_bytes  bytes moved by reads of regular files, of every class, by the layer that moved more
--   faulted     page faults of mapped files that waited: no call requested the pages brought by the faults
--   accelerators, accelerator_busy  number of accelerators seen; the share of the time in which an accelerator
--               worked, a mean over accelerators and over the samples from the first step to the last
WITH ends AS (
    SELECT
        kind,
        device,
        quantity,
        arg_max(value, at_ns) - arg_min(value, at_ns) AS value
    FROM system
    WHERE kind IN ('job', 'disk', 'network')
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
    (SELECT value::BIGINT FROM sums WHERE kind = 'network' AND quantity = 'received_bytes')
        AS network_received_bytes,
    CAST(coalesce((SELECT bytes FROM asked), 0) AS BIGINT) AS asked_bytes,
    (SELECT CAST(coalesce(sum(major + waited), 0) AS BIGINT) FROM fault_counts
        WHERE path_class = 'data') AS faulted,
    (SELECT count(DISTINCT (host, device)) FROM system WHERE kind = 'accelerator') AS accelerators,
    (SELECT avg(s.value) FROM system AS s
        WHERE s.kind = 'accelerator' AND s.quantity = 'busy_share'
            AND s.at_ns BETWEEN (SELECT min(first_ns) FROM mains) AND (SELECT max(last_ns) FROM mains)
    ) AS accelerator_busy
