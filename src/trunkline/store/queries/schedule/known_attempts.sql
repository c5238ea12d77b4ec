-- Which of these holders are attempts at all. A grant that no attempt followed is none.
SELECT id FROM attempts WHERE id = ANY($1::uuid[])
