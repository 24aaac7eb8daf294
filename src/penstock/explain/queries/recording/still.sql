-- Processes that stood still while `penstock attach` was attached: a sentence for each process, in order.
SELECT substr(value, 4) AS said FROM notes WHERE key = 'still' ORDER BY value LIMIT 20
