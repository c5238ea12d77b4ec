-- These calls shall end, whatever became of their attempts.
UPDATE attempts SET hang_up_at = coalesce(hang_up_at, clock_timestamp()) WHERE id = ANY($1::uuid[])
