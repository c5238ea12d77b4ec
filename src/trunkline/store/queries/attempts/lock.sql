-- Lock attempts in id order: a compare-and-set by UPDATE … FROM alone deadlocks with its like.
SELECT id FROM attempts WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
