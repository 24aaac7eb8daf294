-- darshan_ranks: the rank of each process: the process's own rank, or the rank of the nearest ancestor with a rank, so
-- a loader's workers belong to the rank of the loader; 0 if neither the process nor any ancestor has a rank.
WITH RECURSIVE lines(process, ancestor, rank) AS (
    SELECT process, parent, rank FROM processes
    UNION ALL
    SELECT l.process, p.parent, p.rank
    FROM lines AS l
    JOIN processes AS p ON p.process = l.ancestor
    WHERE l.rank IS NULL
)
SELECT process, coalesce(max(rank), 0) AS rank FROM lines GROUP BY process
