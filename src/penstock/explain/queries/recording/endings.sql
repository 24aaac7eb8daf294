-- Exit statuses of the programs started by `penstock run`: a row for each status, for several ranks.
--   status    -N: signal N ended the program
--   programs, ranks  number of programs with the status, and the first eight ranks, as text
WITH told AS (
    SELECT string_split(value, chr(9)) AS words FROM notes WHERE key = 'ended'
),
known AS (
    SELECT TRY_CAST(words[1] AS INTEGER) AS status, TRY_CAST(words[2] AS INTEGER) AS rank FROM told
),
placed AS (
    SELECT *, row_number() OVER (PARTITION BY status ORDER BY rank) AS place FROM known
)
SELECT
    status,
    count(*) AS programs,
    string_agg(CASE WHEN place <= 8 THEN CAST(rank AS VARCHAR) END, ', ' ORDER BY rank) AS ranks
FROM placed
WHERE status IS NOT NULL
GROUP BY status
ORDER BY status = 0, programs DESC, status
