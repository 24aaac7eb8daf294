-- teams: main processes grouped so that stalls count together.  `generation` is a number shared by the processes of
-- a start of the job or, where main processes wait for each other in groups only (see coupling), of a group.
SELECT
    g.process,
    CASE WHEN c.how = 'groups' THEN dense_rank() OVER (ORDER BY t.team) ELSE g.generation END AS generation
FROM generations AS g
CROSS JOIN coupling AS c
LEFT JOIN met AS t ON t.process = g.process
