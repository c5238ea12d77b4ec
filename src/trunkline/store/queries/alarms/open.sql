-- What is raised now.
SELECT * FROM alarms WHERE cleared_at IS NULL ORDER BY id
