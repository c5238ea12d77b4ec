-- About how many leads there are: what the last vacuum or analyze saw. Counting them would read every one. -1: never seen.
SELECT reltuples::bigint FROM pg_class WHERE oid = 'leads'::regclass
