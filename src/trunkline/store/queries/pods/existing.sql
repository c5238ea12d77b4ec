-- Which of these pods there are.
SELECT name FROM pods WHERE name = ANY($1::text[])
