-- Every flag that somebody has set.
SELECT * FROM flags ORDER BY name
