-- The shares of merchants that differ from one.
SELECT id, weight FROM merchants WHERE weight <> 1
