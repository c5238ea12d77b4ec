-- Does any layer of any policy have pre-checks? Most installations have none, and their flows need not be walked.
SELECT EXISTS (SELECT FROM policies WHERE jsonb_typeof(policy -> 'prechecks') = 'array' AND policy -> 'prechecks' <> '[]')
