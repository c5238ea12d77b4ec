-- The groups of tiers for which calls ring without an agent kept for them. Most installations have none: then kept dials
-- need not ask what they leave free.
SELECT DISTINCT a.overdial_group
FROM attempts AS a
WHERE a.overdial_group IS NOT NULL AND a.state IN ('dialing', 'in_doubt', 'accepted', 'ringing')
