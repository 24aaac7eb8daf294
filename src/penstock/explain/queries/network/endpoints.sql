-- One row per endpoint with connections that processes of the job opened or accepted; the endpoint with the most
-- bytes first.
--   connections  number of connections
--   failed       connections that never opened
--   reopened     connections opened after the same process had closed a connection to the same endpoint
--   summed       number of connections past the first 10,000 of a process, recorded only as sums by endpoint
--   answers      how often bytes came after a send: for HTTP/1.1 the number of requests, handshakes included
--   waited_s     time of threads blocked for the endpoint, all threads together
--   first_byte_s, transfer_s  time to the first byte of answers, and time to transfer answers, whether or not a
--                thread was blocked
--   connect_s    mean time to connect
--   handshake_s  mean time of TLS handshakes, over connections with a handshake
--   rtt_s, min_rtt_s  median and minimum of the kernel's round-trip times; NULL: the kernel was not asked
--   most_at_once largest number of connections open at once in a process
--   open_s       from the first opening to the last count of bytes: the time in which the endpoint may have been
--                used; NULL: no opening was seen
--   is_own       a recorded process of the job is at the other end of all connections
WITH edges AS (
    SELECT process, endpoint, opened_ns AS at_ns, 1 AS step
    FROM connections
    WHERE opened_ns IS NOT NULL AND connections = 1
    UNION ALL
    SELECT process, endpoint, closed_ns, -1
    FROM connections
    WHERE opened_ns IS NOT NULL AND closed_ns IS NOT NULL AND connections = 1
),
counted AS (
    SELECT endpoint, sum(step) OVER (PARTITION BY process, endpoint ORDER BY at_ns, step) AS open_now
    FROM edges
),
most AS (
    SELECT endpoint, max(open_now) AS most_at_once FROM counted GROUP BY endpoint
),
closings AS (
    SELECT process, endpoint, min(closed_ns) AS first_ns FROM connections GROUP BY process, endpoint
)
SELECT
    c.endpoint,
    CAST(sum(c.connections) AS BIGINT) AS connections,
    CAST(coalesce(sum(c.connections) FILTER (WHERE c.connections > 1), 0) AS BIGINT) AS summed,
    CAST(coalesce(sum(c.connections) FILTER (WHERE c.opened_ns IS NOT NULL AND c.connect_ns IS NULL), 0) AS BIGINT)
        AS failed,
    CAST(coalesce(sum(c.connections) FILTER (WHERE c.connect_ns IS NOT NULL AND c.opened_ns > k.first_ns), 0) AS BIGINT)
        AS reopened,
    count(DISTINCT c.process) AS processes,
    CAST(sum(c.received_bytes) AS BIGINT) AS received_bytes,
    CAST(sum(c.sent_bytes) AS BIGINT) AS sent_bytes,
    CAST(sum(greatest(0, coalesce(c.kernel_received_bytes, 0) - c.received_bytes - 1))
        FILTER (WHERE NOT c.is_earlier) AS BIGINT) AS unseen_bytes,
    CAST(sum(c.answers) AS BIGINT) AS answers,
    sum(c.waited_connect_ns + c.waited_send_ns + c.waited_first_byte_ns + c.waited_transfer_ns) / 1e9 AS waited_s,
    sum(c.first_byte_ns) / 1e9 AS first_byte_s,
    sum(c.transfer_ns) / 1e9 AS transfer_s,
    sum(c.connect_ns * c.connections) / sum(c.connections) FILTER (WHERE c.connect_ns IS NOT NULL) / 1e9 AS connect_s,
    sum(c.handshake_ns) / sum(c.connections) FILTER (WHERE c.handshake_ns IS NOT NULL) / 1e9 AS handshake_s,
    median(c.rtt_ns) / 1e9 AS rtt_s,
    min(c.min_rtt_ns) / 1e9 AS min_rtt_s,
    CAST(sum(c.retransmits) AS BIGINT) AS retransmits,
    CAST(coalesce(max(m.most_at_once), 0) AS BIGINT) AS most_at_once,
    (max(c.counted_ns) - min(c.opened_ns)) / 1e9 AS open_s,
    bool_and(c.is_accepted) AS is_accepted,
    bool_or(n.endpoint IS NOT NULL) AS is_own
FROM connections AS c
LEFT JOIN own_endpoints AS n ON n.endpoint = c.endpoint
LEFT JOIN closings AS k ON k.process = c.process AND k.endpoint = c.endpoint
LEFT JOIN most AS m ON m.endpoint = c.endpoint
WHERE c.endpoint IS NOT NULL
GROUP BY c.endpoint
ORDER BY sum(c.received_bytes + c.sent_bytes) DESC, c.endpoint
LIMIT 100
