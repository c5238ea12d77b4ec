-- Whose agents are elsewhere: the match does not hold their leads back for want of one of ours. As the scripts name them.
SELECT 'm/' || id AS subject FROM merchants WHERE agents = 'elsewhere'
UNION ALL
SELECT 'p/' || id FROM pools WHERE agents = 'elsewhere'
