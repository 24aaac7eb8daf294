-- own_endpoints: the endpoints at which only recorded processes of the job answered.
-- A connection without a byte, such as a refused connect after a server's end, does not show who answered.  Of a port of
-- this host one connection with a recorded process at the other end is enough: the port has one owner, and a process
-- that was killed lacks rows of connections.
SELECT endpoint
FROM connections
WHERE received_bytes + sent_bytes > 0 AND endpoint IS NOT NULL
GROUP BY endpoint
HAVING bool_and(peer_process IS NOT NULL) OR (bool_and(is_loopback) AND bool_or(peer_process IS NOT NULL))
