-- Which of these wall times have an occurrence already: made, or skipped ahead of their time.
SELECT wall_at, state FROM reminder_occurrences WHERE reminder_id = $1 AND wall_at = ANY ($2::timestamp[])
