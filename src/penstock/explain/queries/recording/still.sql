-- What `penstock attach` saw of processes that stood still while it was attached, a sentence each, in order.
SELECT substr(value, 4) AS said FROM notes WHERE key = 'still' ORDER BY value LIMIT 20
